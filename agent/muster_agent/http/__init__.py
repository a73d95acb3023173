"""The agent over HTTP: routes, access, and bounds."""
