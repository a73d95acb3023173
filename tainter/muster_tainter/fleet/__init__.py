"""The fleet as this replica knows it, and what this replica may do."""
