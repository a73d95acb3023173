"""A simulated V-IPU controller: its state is real, its IPUs are not. A pure core with HTTP around it.

The HTTP interface is Muster's own (V-IPU uses gRPC with unpublished definitions); its command prints the published
formats.
"""
