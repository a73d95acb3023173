"""A real kubelet and containerd, in separate namespaces."""
