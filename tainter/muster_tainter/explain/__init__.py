"""Explains why a node is tainted, and replays recorded findings under another policy."""
