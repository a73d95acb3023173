"""The API server: where it is, who we are to it, and the calls."""
