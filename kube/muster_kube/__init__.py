"""The thin Kubernetes layer: client, list/watch, work queue, lease, and NodeHealth's types.

Raw JSON decoded into small structs that hold only the fields a part uses. Knows nothing of checks.
"""
