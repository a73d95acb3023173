"""The checks of this node: when they run, what they found, and what is remembered of it."""
