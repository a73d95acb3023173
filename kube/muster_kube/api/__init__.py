"""Access to the API server: configuration, credentials, requests."""
