"""What the cluster holds of jobs, nodes, partitions and requests for checks."""
