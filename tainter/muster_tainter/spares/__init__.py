"""Spares: nodes of a pool that are kept free and replace nodes with a fault."""
