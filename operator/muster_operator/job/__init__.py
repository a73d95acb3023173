"""IPUJobs, their partitions and their pods as values."""
