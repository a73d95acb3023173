"""Where findings come from beside NodeHealth: kernel lines and pod logs in Loki, Node conditions of other agents.

A source remembers nothing outside this process. What it has told before, a new leader finds in the Node's annotation
(:mod:`muster_tainter.sources.occurrences`), and Loki is asked again for what may have come since.
"""
