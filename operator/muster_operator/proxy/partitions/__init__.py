"""Partitions: requests of the operator, reconciliation with V-IPU, and parking of quarantined IPUs."""
