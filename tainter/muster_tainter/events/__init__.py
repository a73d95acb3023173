"""Events, the Node condition, and the latency of each hop."""
