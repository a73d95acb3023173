"""The tracker ConfigMap: its entries, decisions about them, and all writes to it."""
