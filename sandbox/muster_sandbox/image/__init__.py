"""Builds Muster's image without a container engine."""
