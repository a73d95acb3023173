"""From findings to faults, and from faults to what a Node should carry. Pure."""
