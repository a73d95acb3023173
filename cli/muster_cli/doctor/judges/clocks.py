"""Compares the clocks of the API server, of this machine and of the nodes. Pure.

The clock of a node is visible in two objects: every ten seconds its kubelet writes the time into the Lease of the node,
and its agent writes the time of its last report into the NodeHealth. The times in ``managedFields`` are of no use:
Kubernetes 1.20 sets them only once.
"""

from collections.abc import Iterable, Iterator, Mapping

from muster_checks.base.vocabulary import Verdict
from muster_cli.doctor.facts import HealthFacts
from muster_cli.doctor.findings import DoctorFinding, join_some
from muster_cli.report.quantities import plural
from muster_kube.api.objects import Node
from muster_kube.api.times import seconds
from muster_kube.controller.lease import Lease

AREA = "clocks"
HERE_S = 5.0  # tolerance: the Date header has whole seconds, and the response takes time
AHEAD_S = 10.0
BEHIND_S = 60.0  # the kubelet of a Ready node has renewed its Lease within 40 s, whatever time it wrote
_MEND = "run on that machine: muster check clock, and chronyc tracking or timedatectl"


def judge(
    server: float | None,
    here: float,
    nodes: Iterable[Node],
    leases: Mapping[str, Lease],
    healths: Mapping[str, HealthFacts],
) -> list[DoctorFinding]:
    """server, here: seconds since the epoch at the same moment; server is None without a Date header.

    leases, healths: by node.
    """
    found: list[DoctorFinding] = []
    if server is not None and abs(here - server) > HERE_S:
        what = (
            f"the clock of this machine is {_off(here - server)} the API server: ages shown here are wrong by as much"
        )
        found.append(DoctorFinding(AREA, Verdict.WARN, what, _MEND))
    now = here if server is None else server
    found += _nodes({each.metadata.name: clock_skew(each, leases, healths, now) for each in nodes})
    return found or [DoctorFinding(AREA, Verdict.PASS, "the clocks of API server, nodes and this machine agree")]


def _nodes(skews: Mapping[str, float]) -> Iterator[DoctorFinding]:
    wrong = {name: skew for name, skew in skews.items() if skew}
    if wrong:
        most = max(wrong.values(), key=abs)
        whose = f"{plural(len(wrong), 'node')} ({join_some(wrong)})"
        what = f"the clocks of {whose} are wrong, up to {_off(most)} the API server"
        yield DoctorFinding(AREA, Verdict.FAIL, what, _MEND)


def clock_skew(node: Node, leases: Mapping[str, Lease], healths: Mapping[str, HealthFacts], now: float) -> float:
    """Seconds by which the node is ahead, negative if behind; 0 within the tolerance or if not known."""
    name = node.metadata.name
    renewed = seconds(leases[name].spec.renew_time or "") if name in leases else 0.0
    reported = seconds(healths[name].status.observed_at) if name in healths else 0.0
    ahead = max(renewed, reported) - now
    if ahead > AHEAD_S:
        return ahead
    ready = any(each.type == "Ready" and each.status == "True" for each in node.status.conditions)
    return renewed - now if ready and renewed and now - renewed > BEHIND_S else 0.0


def _off(skew: float) -> str:
    size = f"{abs(skew):.0f} s" if abs(skew) < 600 else f"{abs(skew) / 60:.0f} min"
    return f"{size} {'ahead of' if skew > 0 else 'behind'}"
