"""Caches of the cluster's jobs, nodes, partitions and check requests."""
