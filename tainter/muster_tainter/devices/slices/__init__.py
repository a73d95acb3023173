"""ResourceSlices: which devices a node has, by PCI address and UUID."""
