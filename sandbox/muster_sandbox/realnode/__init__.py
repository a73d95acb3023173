"""A real kubelet and containerd, in namespaces of their own."""
