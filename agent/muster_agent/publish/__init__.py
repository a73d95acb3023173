"""Publishes the node's state in its NodeHealth."""
