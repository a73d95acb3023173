"""How pods end, as evidence about the nodes that they ran on."""
