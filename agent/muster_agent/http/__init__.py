"""The agent's HTTP server: routes, authorization and limits."""
