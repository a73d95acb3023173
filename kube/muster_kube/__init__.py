"""The thin Kubernetes layer: client, list/watch, work queue, lease, and NodeHealth's types.

Decodes raw JSON into small structs with only the fields that a component uses. Does not depend on the checks.
"""
