"""Step times of running jobs, from a Prometheus: which node slows a job, and what its owner wants done about it.

A child process judges the times, by :mod:`muster_tainter.stragglers`, so that no job delays a taint.
"""
