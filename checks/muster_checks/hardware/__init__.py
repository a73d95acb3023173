"""Devices and links of a node, and what each model should do."""
