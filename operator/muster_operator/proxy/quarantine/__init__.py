"""Keeping quarantined IPUs out of partitions."""
