"""Limits on the number of tainted nodes: pools, failure domains, and incidents."""
