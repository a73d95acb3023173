"""What can be wrong with a node, and how to see it.

Pure Python: no Kubernetes, no web. Each check is a folder of its own that declares itself once
(:mod:`muster_checks.base.declaration`), reads in one function and judges in another.
"""
