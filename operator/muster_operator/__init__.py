"""Runs IPUJobs: admission, their pods on healthy nodes, and the V-IPU partitions that they use.

Pure functions decide (``plan(job, snapshot) -> JobPlan``); thin modules act. Each job is handled under one key, and all
state that matters is in the cluster (the job's status, its pods, the tracker ConfigMap), so any replica can take over.
"""
