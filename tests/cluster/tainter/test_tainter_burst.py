"""Faults that wait when the tainter starts. How fast they go out is `make bench`'s to say (tests/bench/burst.py)."""

from collections import Counter
from pathlib import Path
from typing import Any

from tests.cluster.tainter import test_end_to_end as end_to_end
from tests.cluster.tainter import test_leader_lost as leader_lost
from tests.cluster.tainter.fleet_findings import FATAL, finding_of_each, healths, publish, recording

from muster_kube.api.client import KubeClient
from muster_sandbox.simulation.nodes import SimulatedNodes

cluster, tainters, standbys = end_to_end.cluster, end_to_end.tainters, leader_lost.standbys  # fixtures

FAULTS = 500


async def test_of_a_burst_the_first_write_on_each_node_is_its_taint_and_nothing_is_asked_first(
    control_plane: Any, standbys: leader_lost.Standbys, fleet: SimulatedNodes, api: KubeClient, tmp_path: Path
) -> None:
    names = await fleet.create(FAULTS, prefix="burst")
    await healths(api, names)
    await publish(api, finding_of_each(names, FATAL))
    policy = tmp_path / "policy.yaml"
    policy.write_text("rules: [{name: hardware, match: {verdict: FAIL}, action: taint}]")  # no pools: no budget
    since = control_plane.audit.mark()

    async def answered() -> Counter[tuple[str, int]] | None:
        """The tainter's requests for single Nodes by verb and status, once all taints have been answered."""
        asked = [each for each in control_plane.audit.requests(since) if "muster-tainter" in each.user and each.name]
        of_nodes = [each for each in asked if each.resource in ("nodes", "nodes/status")]
        taints = sum(each.verb == "patch" and each.status == 200 for each in of_nodes if each.resource == "nodes")
        return Counter((each.verb, each.status) for each in of_nodes) if taints >= FAULTS else None

    async with recording(api, names) as seen:
        await standbys.start(1, policy)  # it leads once it knows of no pause, until which it would taint nothing
        await standbys.begin()
        await seen.until(lambda: len(seen.tainted) == FAULTS, "all are tainted")
        # a watch shows a write before its request is answered, and the audit log has it only then
        on_nodes = await end_to_end.until(answered, "each write is answered")
    ours = [state for state in seen.states if state.memory or state.labelled]
    assert [state.name for state in ours if not state.tainted] == []
    assert on_nodes["get", 200] <= on_nodes["patch", 409]  # a Node is read only where somebody else had just written it
