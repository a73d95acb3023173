"""What a job is made of, as plain API objects: its pods, the ConfigMap for MPI, and the launcher's rights."""
