"""Which IPUs are quarantined, and which free blocks that spoils."""
