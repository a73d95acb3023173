"""Draining and repairing tainted nodes, and the quarantine of IPUs."""
