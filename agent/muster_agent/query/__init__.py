"""/status: its queries and its answers."""
