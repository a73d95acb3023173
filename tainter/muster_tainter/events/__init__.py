"""What people and pods are told: Events, the Node condition, and the latency of each hop."""
