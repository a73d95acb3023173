"""An IPUJob, its partitions and its pods as values."""
