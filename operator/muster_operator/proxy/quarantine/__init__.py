"""Quarantined IPUs, and the free blocks that they make unusable."""
