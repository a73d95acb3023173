"""The `muster` command line. It also starts the parts: agent, tainter, operator and V-IPU proxy."""
