"""A Kubernetes control plane on loopback: its processes and certificates, and the installation of Muster on it."""
