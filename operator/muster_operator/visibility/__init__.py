"""Free IPUs for others: numbers on the nodes, and an extender of the Kubernetes scheduler."""
