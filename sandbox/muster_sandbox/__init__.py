"""A cluster on one machine, as a library: control plane, simulated and real nodes, Muster's components as processes.

`muster sandbox` (muster_cli.sandbox) and the tests use it. It does not import the components; it starts their programs.
"""
