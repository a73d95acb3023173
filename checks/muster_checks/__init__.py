"""The health checks of a node. Pure Python, with no dependency on Kubernetes or on a web framework.

Each check is a package listed in registry.py. All of them have the same layout:

    __init__.py      the declaration: Check(...) and its Parameters, with limits and their sources
    probe.py         probe() reads the node and calls judge(); judge_recorded() does the same for recorded output
    judge.py         decides: takes values, returns findings, reads nothing
    parse.py         converts the text of a tool or file to values; reads nothing
    thresholds.yaml  limits as data; models.yaml: expected values of each model; both with the source beside each row

Other modules of a check are named after their subject: cpu/topology.py, memory/edac.py, sysfs.py (reads /sys for
probe.py), sample.py (judge_recorded() where a recording may come from several tools). The kernel log (dmesg) is a
stream: it has stream.py instead of probe.py. A check based on NVIDIA's GPU reading is declared with
nvidia.gpu_check.gpu_check() and needs only a judge.py.

These packages are not checks: base (what every check uses), hardware (PCI, links, tables of models), plugins (checks
from an operator's files), testing (test fixtures), and the code shared by the checks of one vendor: nvidia, cuda,
graphcore.
"""
