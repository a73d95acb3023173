"""Findings of the checks, open and cleared, and the NodeHealth status derived from them."""
