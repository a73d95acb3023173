"""IPUJobs: admission, their pods on healthy nodes, and the V-IPU partitions they run on.

Decided in pure functions (``plan(job, seen) -> Plan``), done at the edge. Every job is handled by one key; what
matters is in the cluster (the job's status, its pods, the tracker ConfigMap), so any replica can go on from it.
"""
