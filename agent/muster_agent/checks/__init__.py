"""Runs the checks of the node and keeps their results."""
