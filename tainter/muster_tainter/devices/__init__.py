"""Keeps single GPUs and NICs out of use: ResourceSlices name them, DeviceTaintRules taint them (resource.k8s.io)."""
