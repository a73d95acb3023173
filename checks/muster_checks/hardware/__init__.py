"""Devices and links of a node, and the expected values of each model."""
