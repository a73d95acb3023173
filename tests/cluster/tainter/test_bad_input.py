"""The tainter on a real API server when its input is bad: policies that overlap, memories edited by hand, objects of
nodes that are gone or that are full to the brim, clocks that jump.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.tainter import test_end_to_end as end_to_end
from tests.cluster.tainter.test_end_to_end import FAULTY, HEALTHS, Cluster, Tainters, finding, until

from muster_kube.api.client import KubeClient
from muster_kube.api.config import load_config
from muster_kube.api.errors import Invalid
from muster_sandbox.simulation.nodes import NodeShape, SimulatedNodes
from muster_tainter.controller import Tainter
from muster_tainter.faults.node_report import FINDINGS_LIMIT
from muster_tainter.faults.record.node_record import ANNOTATION, SIZE_LIMIT, UNREADABLE_ANNOTATION
from muster_tainter.fleet.replica import Connections, Replica
from muster_tainter.metrics import TainterMetrics
from muster_tainter.policy.file import parse_policy

cluster, tainters = end_to_end.cluster, end_to_end.tainters  # fixtures

KIND = {"apiVersion": "muster.dev/v1alpha1", "kind": "NodeHealth"}
POOL = "testbed.muster.dev/bad-days"


def policy(folder: Path, text: str) -> tuple[str, str]:
    file = folder / "policy.yaml"
    file.write_text(text)
    return "--policy", str(file)


async def memory(cluster: Cluster, name: str) -> dict[str, Any]:
    annotations = (await cluster.node(name))["metadata"].get("annotations", {})
    return json.loads(annotations.get(ANNOTATION, "{}"))  # type: ignore[no-any-return] # an object, by contract


async def condition_says(cluster: Cluster, name: str, *facts: str) -> bool:
    condition = await cluster.condition(name)
    return condition is not None and all(fact in condition["message"] for fact in facts)


async def test_of_rules_that_overlap_the_first_decides_and_of_pools_that_overlap_every_budget_counts(
    tainters: Tainters, fleet: SimulatedNodes, cluster: Cluster, tmp_path: Path
) -> None:
    text = f"""
pools:
  - {{name: all, selector: {{matchLabels: {{{POOL}: gpu}}}}, budget: {{tainted: 100%}}}}
  - name: rack
    selector: {{matchLabels: {{{POOL}: gpu}}}}
    domain: topology.muster.dev/rack
    budget: {{perDomain: 2}}
rules:
  - {{name: one, match: {{reason: "Xid7?"}}, action: taint, taint: {{key: example.com/one}}}}
  - {{name: two, match: {{reason: Xid79}}, action: event}}
  - {{name: three, match: {{reason: "*"}}, action: taint, taint: {{key: example.com/three}}}}
"""
    await tainters.start(*policy(tmp_path, text))
    names = await fleet.create(4, prefix="lap", shape=NodeShape(labels={POOL: "gpu"}))  # all in one rack

    async def keys(name: str) -> list[str]:
        return [taint["key"] for taint in await cluster.taints(name)]

    for name, reason, key in ((names[0], "Xid79", "example.com/one"), (names[1], "Xid95", "example.com/three")):
        await cluster.report(name, finding(reason))
        await until(lambda name=name, key=key: _is(keys(name), [key]), f"{name} is tainted")  # type: ignore[misc] # bound at once
    await cluster.report(names[2], finding("Xid79"))
    await until(partial(condition_says, cluster, names[2], "budget:", "rack", "2 of 2"), "it is withheld")
    await cluster.report(names[0], boot="boot-2")
    await until(lambda: _is(keys(names[2]), ["example.com/one"]), "the place that came free is taken")
    assert await keys(names[0]) == []


async def _is(asked: Any, value: object) -> bool:
    return bool(await asked == value)


async def test_a_memory_that_was_edited_into_garbage_is_kept_aside_told_and_rebuilt(
    tainters: Tainters, fleet: SimulatedNodes, cluster: Cluster
) -> None:
    await tainters.start()
    bad, lost = await fleet.create(2, prefix="garb")
    for name in (bad, lost):
        await cluster.report(name, finding())
        await cluster.until_faulty(name)
    await cluster.report(lost)  # its agent has lost its state: nothing but the memory knows of the fault
    garbage = '{"open": [{"check": 7}], '
    for name in (bad, lost):
        change = {"metadata": {"annotations": {ANNOTATION: garbage}}}
        await cluster.api.patch(f"/api/v1/nodes/{name}", change)

        async def rebuilt(name: str = name) -> bool:
            annotations = (await cluster.node(name))["metadata"]["annotations"]
            return bool(annotations.get(UNREADABLE_ANNOTATION) == garbage and annotations[ANNOTATION] != garbage)

        await until(rebuilt, "it is kept aside and rebuilt")

        async def told(name: str = name) -> bool:
            return "MemoryUnreadable" in await cluster.events(name)

        await until(told, "MemoryUnreadable")
        assert await cluster.faulty(name), "a taint of ours never came off in between"
    assert [fault["reason"] for fault in (await memory(cluster, bad))["open"]] == ["Xid79"]
    assert [fault["reason"] for fault in (await memory(cluster, lost))["open"]] == ["MemoryLost"]
    for name in (bad, lost):
        await cluster.report(name, boot="boot-2")
        await cluster.until_free(name)


async def test_the_health_of_a_node_that_is_gone_does_nothing_until_there_is_one_again(
    tainters: Tainters, fleet: SimulatedNodes, cluster: Cluster, control_plane: Any
) -> None:
    replica = await tainters.start()
    [name, other] = await fleet.create(2, prefix="gone")
    await cluster.report(name, finding())
    await cluster.until_faulty(name)
    await cluster.api.delete(f"/api/v1/nodes/{name}")
    with_nobody = "gone-nobody"
    await cluster.api.create(HEALTHS, KIND | {"metadata": {"name": with_nobody}})
    since = control_plane.audit.mark()
    for occurrence in (2, 3):
        await cluster.report(with_nobody, finding(occurrence=occurrence))
    await cluster.report(other, finding())
    await cluster.until_faulty(other)  # what came after them has been dealt with
    asked = [r for r in control_plane.audit.requests(since) if "muster-tainter" in r.user and r.name == with_nobody]
    assert asked == []
    assert "Traceback" not in replica.lines()
    fleet.names.append(with_nobody)
    await fleet.create(1, prefix="gone-again")
    await cluster.api.create("/api/v1/nodes", {"metadata": {"name": with_nobody}})
    await cluster.until_faulty(with_nobody)


def full_report(checks: int, occurrence: int = 1) -> dict[str, Any]:
    """The status of a NodeHealth with 64 findings of each check."""
    found = {"reason": "R", "verdict": "FAIL", "class": "reset", "occurrence": occurrence}
    findings = [found | {"component": f"d/{number}"} for number in range(64)]
    of_each = [{"name": f"c{number}", "verdict": "FAIL", "findings": findings} for number in range(checks)]
    return {"status": {"verdict": "FAIL", "bootID": "boot-1", "checks": of_each}}


async def test_as_many_findings_as_one_object_takes_are_one_taint_and_a_bounded_memory_that_counts_them(
    tainters: Tainters, fleet: SimulatedNodes, cluster: Cluster
) -> None:
    await tainters.start()
    full, other = await fleet.create(2, prefix="full")
    await cluster.report(full)
    with pytest.raises(Invalid, match="128"):
        await cluster.api.patch(f"{HEALTHS}/{full}/status", full_report(checks=160))  # they do not even get in
    await cluster.api.patch(f"{HEALTHS}/{full}/status", full_report(checks=128))
    await cluster.until_faulty(full)
    annotation = (await cluster.node(full))["metadata"]["annotations"][ANNOTATION]
    assert len(annotation.encode()) <= SIZE_LIMIT
    assert sum(fault.get("rest", 1) for fault in json.loads(annotation)["open"]) == FINDINGS_LIMIT
    await cluster.report(other, finding())
    await cluster.until_faulty(other)  # and nobody else waits for it


@asynccontextmanager
async def running(control_plane: Any, text: str, now: Callable[[], float]) -> AsyncIterator[Tainter]:
    """A tainter in this process, with a clock of its own."""
    rules = parse_policy(text)
    config = load_config(control_plane.kubeconfig_for("muster-tainter", "muster"))
    async with KubeClient(config, timeout_s=30.0, max_connections=28) as client:
        tainter = Tainter(
            Connections.shared(client), lambda: rules, Replica(may_write=lambda: True, now=now), TainterMetrics()
        )
        tasks = asyncio.gather(tainter.watch(), tainter.lead())
        try:
            yield tainter
        finally:
            tasks.cancel()
            await asyncio.gather(tasks, return_exceptions=True)


async def test_a_clock_that_jumps_frees_no_node_and_holds_up_no_fault(
    control_plane: Any, fleet: SimulatedNodes, cluster: Cluster
) -> None:
    clock = [1_800_000_000.0]
    text = f"""
pools: [{{name: jump, selector: {{matchLabels: {{{POOL}: jump}}}}, budget: {{tainted: 4}}}}]
rules: [{{name: hw, match: {{class: reboot}}, for: 30s, action: taint}}]
"""
    names = await fleet.create(5, prefix="jump", shape=NodeShape(labels={POOL: "jump"}))

    async def opened(name: str) -> bool:
        return bool((await memory(cluster, name)).get("open"))

    async with running(control_plane, text, lambda: clock[0]):
        for name, jump in zip(names[:4], (31.0, 3600.0, -3600.0, -7200.0), strict=True):
            await cluster.report(name, finding())
            await until(partial(opened, name), "the fault is open, and waits")
            clock[0] += jump
            await cluster.report(name, finding(), finding("Xid95", 2))  # a word from the node: look again
            await cluster.until_faulty(name)
        await cluster.report(names[4], finding())
        await until(partial(opened, names[4]), "the last one is open too")
        clock[0] += 3600.0
        await cluster.report(names[4], finding(), finding("Xid95", 2))
        await until(partial(condition_says, cluster, names[4], "budget:", "jump", "4 of 4"), "the level holds")
        assert [FAULTY in await cluster.taints(name) for name in names] == [True] * 4 + [False]
        await cluster.report(names[0], boot="boot-2")
        await cluster.until_free(names[0])
        await until(lambda: cluster.faulty(names[4]), "the place goes to who waits")
