"""The tainter over HTTP, beside the fleet page."""
