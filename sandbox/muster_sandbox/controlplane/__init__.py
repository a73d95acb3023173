"""A Kubernetes control plane on loopback: its processes, certificates, and what is installed on it."""
