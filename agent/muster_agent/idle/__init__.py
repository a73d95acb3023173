"""Whether the node's accelerators are in use."""
