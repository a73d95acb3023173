"""Kubernetes and other programs, built or taken from Debian's packages, once a user."""
