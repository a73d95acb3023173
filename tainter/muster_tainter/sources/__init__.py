"""Sources of findings other than NodeHealth: kernel lines and pod logs in Loki, PromQL queries,
Node conditions of other agents.

A source keeps no state outside this process. A new leader finds earlier findings in the Node's annotation
(:mod:`muster_tainter.sources.occurrences`), and reads recent lines from Loki again.
"""
