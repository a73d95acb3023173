"""Finds out whether the node's accelerators are in use."""
