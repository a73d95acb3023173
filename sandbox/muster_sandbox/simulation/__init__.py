"""Nodes, pods and kubelets that are simulated."""
