"""The tracker ConfigMap: its entries, the decisions about them, and the one way to change it."""
