"""What can be wrong with a node, and how to see it. Pure Python: no Kubernetes, no web.

Each check is a folder, listed in registry.py. Who knows one of them knows all:

    __init__.py      the declaration: Check(...) and its Parameters, with limits and their sources
    probe.py         probe() reads the node and has judge() decide; judge_recorded() does so for recorded output
    judge.py         decides: values in, findings out; reads nothing
    parse.py         text of a tool or a file -> values; reads nothing
    thresholds.yaml  limits as data, models.yaml what each model should do, with the source beside each row

What else a folder has carries the name of its subject (cpu/topology.py, memory/edac.py, sysfs.py: reads /sys for
probe.py; sample.py: judge_recorded() where a recording may be of several tools). The kernel log (dmesg) is a stream:
stream.py stands in place of probe.py. A check on NVIDIA's GPU reading is declared by nvidia.gpu_check.gpu_check() and
needs a judge.py only.

No checks: base (what every check is made of), hardware (PCI, links, tables of models), plugins (checks from files of an
operator), testing (fixtures for tests of checks), and what the checks of one vendor share: nvidia, cuda, graphcore.
"""
