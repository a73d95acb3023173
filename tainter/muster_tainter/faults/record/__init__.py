"""What the tainter stores about a node, in annotations of the Node and of its NodeHealth."""
