"""Builds the API objects of a job: its pods, the ConfigMap for MPI, and the launcher's rights."""
