"""`muster release`: removes what Muster has set, from nodes (nodes.py), or the numbers of IPUs only (ipus.py)."""
