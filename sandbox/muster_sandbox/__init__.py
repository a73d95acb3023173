"""A whole cluster on one machine, as a library: a control plane, simulated and real nodes, Muster's parts as processes.

`muster sandbox` (muster_cli.sandbox) and the tests stand on it. It imports none of the parts: it starts their programs.
"""
