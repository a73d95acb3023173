"""Which rank of a job is slow, from the times of its steps: pure functions, plain Python."""
