"""The checks of this node: when they run, and what is kept of their runs."""
