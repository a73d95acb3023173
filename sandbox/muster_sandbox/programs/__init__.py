"""Kubernetes and other programs, built or unpacked from Debian packages and cached for the user."""
