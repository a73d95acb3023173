"""What is wanted of a partition, and bringing V-IPU to it."""
