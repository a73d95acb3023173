"""The V-IPU proxy: manages partitions for IPUJobs and reports the capacity.

The tracker ConfigMap records each intended partition before V-IPU is called, and V-IPU is asked for each partition by
name. After a crash the proxy continues from both; it keeps no other state.
"""
