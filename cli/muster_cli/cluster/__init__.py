"""How commands reach a cluster, its agents and its tainter."""
