"""Bad hardware under a job: checks before the launcher, faults while it runs, and what Poplar requests."""
