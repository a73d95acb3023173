"""Muster's image, put together without an engine."""
