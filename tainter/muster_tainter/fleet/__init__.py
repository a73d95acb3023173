"""The fleet as seen by this replica, and the replica itself."""
