"""From findings to faults, and from faults to the desired state of a Node. Pure functions."""
