"""The command `muster sandbox`: its actions, and its table of nodes. The cluster behind it is muster_sandbox."""
