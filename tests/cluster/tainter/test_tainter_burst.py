"""Faults that wait when the tainter starts. How fast they go out is `make bench`'s to say (tests/bench/burst.py)."""

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.cluster.tainter import test_end_to_end as end_to_end
from tests.cluster.tainter import test_leader_lost as leader_lost
from tests.cluster.tainter.fleet_findings import FATAL, finding_of_each, healths, publish, recording

from muster_kube.api.client import KubeClient
from muster_sandbox.controlplane.audit import AuditedRequest
from muster_sandbox.simulation.nodes import SimulatedNodes

cluster, tainters, standbys = end_to_end.cluster, end_to_end.tainters, leader_lost.standbys  # fixtures

FAULTS = 500


def needless_reads(requests: Iterable[AuditedRequest]) -> list[str]:
    """Nodes that were read although nobody else had just written them.

    Each conflict of a write to a Node allows one later read of that same Node. So does a conflict of its condition, but
    only once the Node is tainted: it never excuses a read before the taint.
    """
    allowed: Counter[str] = Counter()
    tainted: set[str] = set()
    found = []
    for each in requests:
        if (each.verb, each.status) == ("get", 200):
            allowed[each.name] -= 1
            if allowed[each.name] < 0:
                found.append(each.name)
        elif (each.verb, each.resource, each.status) == ("patch", "nodes", 200):
            tainted.add(each.name)
        elif each.status == 409 and (each.resource == "nodes" or each.name in tainted):
            allowed[each.name] += 1
    return found


async def test_of_a_burst_the_first_write_on_each_node_is_its_taint_and_nothing_is_asked_first(
    control_plane: Any, standbys: leader_lost.Standbys, fleet: SimulatedNodes, api: KubeClient, tmp_path: Path
) -> None:
    names = await fleet.create(FAULTS, prefix="burst")
    await healths(api, names)
    await publish(api, finding_of_each(names, FATAL))
    policy = tmp_path / "policy.yaml"
    policy.write_text("rules: [{name: hardware, match: {verdict: FAIL}, action: taint}]")  # no pools: no budget
    since = control_plane.audit.mark()

    async def answered() -> list[AuditedRequest]:
        """The tainter's requests for single Nodes, once all taints have been answered."""
        asked = [each for each in control_plane.audit.requests(since) if "muster-tainter" in each.user and each.name]
        of_nodes = [each for each in asked if each.resource in ("nodes", "nodes/status")]
        # a server whose etcd stalls answers 500 to a write that it has made
        taints = {each.name for each in of_nodes if (each.verb, each.resource) == ("patch", "nodes") and made(each)}
        return of_nodes if len(taints) >= FAULTS else []

    def made(request: AuditedRequest) -> bool:
        return request.status == 200 or request.status >= 500

    async with recording(api, names) as seen:
        await standbys.start(1, policy)  # it leads once it knows of no pause, until which it would taint nothing
        await standbys.begin()
        await seen.until(lambda: len(seen.tainted) == FAULTS, "all are tainted")
        # a watch shows a write before its request is answered, and the audit log has it only then
        on_nodes = await end_to_end.until(answered, "each write is answered")
    ours = [state for state in seen.states if state.memory or state.labelled]
    assert [state.name for state in ours if not state.tainted] == []
    assert needless_reads(on_nodes) == []
