"""A /status query, and the answer to it."""
