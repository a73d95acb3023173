"""Loki as a source: its client, the lines of its queries, and what they say about nodes."""
