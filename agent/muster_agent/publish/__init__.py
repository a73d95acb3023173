"""Keeps the node's own NodeHealth up to date."""
