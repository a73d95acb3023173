"""The tainter's HTTP API, except for the fleet page."""
