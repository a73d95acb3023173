"""The V-IPU proxy: keeps partitions for IPUJobs, and tells how much room there is.

What the tracker ConfigMap says is meant is written before V-IPU is asked; what V-IPU says is there is asked by name.
So whoever comes after a crash goes on from both, and keeps nothing in memory that matters.
"""
