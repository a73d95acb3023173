"""Whether the clocks agree: the API server's, this machine's, the nodes'. Pure.

A node's clock shows in two places: its kubelet writes the time into its Lease every ten seconds, and its agent the time
of its last word into the NodeHealth. The times in ``managedFields`` do not serve: 1.20 sets them once.
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
HERE_S = 5.0  # the Date header has whole seconds, and the answer takes its time
AHEAD_S = 10.0
BEHIND_S = 60.0  # of a node that is Ready: its kubelet renewed within the last 40 s, whatever it wrote
_MEND = "chronyc tracking, or timedatectl, on that machine; muster check clock"


def judge(
    server: float | None,
    here: float,
    nodes: Iterable[Node],
    leases: Mapping[str, Lease],
    healths: Mapping[str, HealthFacts],
) -> list[DoctorFinding]:
    """server, here: seconds since the epoch at the same moment; server is None where no answer bore a date.

    leases, healths: by node.
    """
    found: list[DoctorFinding] = []
    if server is not None and abs(here - server) > HERE_S:
        what = f"this machine is {_off(here - server)} the API server: ages that are shown here are wrong by as much"
        found.append(DoctorFinding(AREA, Verdict.WARN, what, _MEND))
    now = here if server is None else server
    found += _nodes({each.metadata.name: clock_skew(each, leases, healths, now) for each in nodes})
    return found or [DoctorFinding(AREA, Verdict.PASS, "API server, this machine and nodes agree")]


def _nodes(skews: Mapping[str, float]) -> Iterator[DoctorFinding]:
    wrong = {name: skew for name, skew in skews.items() if skew}
    if wrong:
        most = max(wrong.values(), key=abs)
        whose = f"{plural(len(wrong), 'node')} ({join_some(wrong)})"
        what = f"the clocks of {whose} are off, by up to {_off(most)} the API server"
        yield DoctorFinding(AREA, Verdict.FAIL, what, _MEND)


def clock_skew(node: Node, leases: Mapping[str, Lease], healths: Mapping[str, HealthFacts], now: float) -> float:
    """Seconds by which the node is ahead; 0: it is not, or nobody can tell."""
    name = node.metadata.name
    renewed = seconds(leases[name].spec.renew_time or "") if name in leases else 0.0
    said = seconds(healths[name].status.observed_at) if name in healths else 0.0
    ahead = max(renewed, said) - now
    if ahead > AHEAD_S:
        return ahead
    ready = any(each.type == "Ready" and each.status == "True" for each in node.status.conditions)
    return renewed - now if ready and renewed and now - renewed > BEHIND_S else 0.0


def _off(skew: float) -> str:
    size = f"{abs(skew):.0f} s" if abs(skew) < 600 else f"{abs(skew) / 60:.0f} min"
    return f"{size} {'ahead of' if skew > 0 else 'behind'}"
