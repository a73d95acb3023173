"""Partitions: what the operator requests of them, bringing V-IPU to that, and parking quarantined IPUs."""
