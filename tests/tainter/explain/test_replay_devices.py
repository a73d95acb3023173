"""What a policy that keeps single devices out of use would have done: simulated time, real decisions."""

from typing import Any

import msgspec
import pytest
from tests.tainter.devices.device_world import POLICY, device, finding, gpu, health, read_slice, resource_slice

from muster_kube.api.objects import Metadata, Node
from muster_kube.nodehealth import NodeHealth, ReportedFinding
from muster_tainter.explain.replay import PolicyReplay, ReplayOutcome
from muster_tainter.policy.file import parse_policy

T0 = 1_767_225_600.0  # 2026-01-01T00:00:00Z
AT_ONCE = POLICY + "holdDown: {base: 0s}\n"


def replay(policy: str = AT_ONCE, nodes: int = 1, slices: list[dict[str, Any]] | None = None) -> PolicyReplay:
    names = [f"n{number}" for number in range(1, nodes + 1)]
    given = [resource_slice(name) for name in names] if slices is None else slices
    return PolicyReplay(
        parse_policy(policy), [Node(metadata=Metadata(name=name)) for name in names], list(map(read_slice, given))
    )


def report(*findings: ReportedFinding, node: str = "n1", boot: str = "boot-1") -> NodeHealth:
    return msgspec.structs.replace(health(*findings, boot=boot), metadata=Metadata(name=node))


def devices(outcome: ReplayOutcome) -> list[tuple[str, str, float, float]]:
    return [(each.node, each.device, each.since - T0, each.until - T0) for each in outcome.devices.periods]


def nodes(outcome: ReplayOutcome) -> list[tuple[str, float, float]]:
    return [(each.node, each.since - T0, each.until - T0) for each in outcome.spells]


def test_a_fault_of_one_gpu_keeps_out_the_gpu_and_spares_the_others() -> None:
    past = replay()
    past.take(T0, report(finding(1)))
    past.take(T0 + 7200, report(boot="boot-2"))
    outcome = past.finish(T0 + 10_000)
    assert devices(outcome) == [("n1", gpu(1), 0.0, 7200.0)]
    assert nodes(outcome) == []
    assert (outcome.devices.count, outcome.devices.alone_s, outcome.devices.spared_s) == (1, 7200.0, 3 * 7200.0)
    assert (outcome.tainted, outcome.tainted_s) == (set(), 0.0)
    assert outcome.devices.periods[0].ended


@pytest.mark.parametrize("slices", [
    [],
    [resource_slice("other")],
    [resource_slice("n1", devices=[device(1), device(1)])],
    [resource_slice("n1"), resource_slice("n1", driver="nic.example.com")],
], ids=["none", "of another node", "named twice", "two drivers"])  # fmt: skip
def test_a_device_that_no_slice_tells_from_others_taints_its_node(slices: list[dict[str, Any]]) -> None:
    past = replay(slices=slices)
    past.take(T0, report(finding(1)))
    outcome = past.finish(T0 + 100)
    assert (devices(outcome), nodes(outcome)) == ([], [("n1", 0.0, 100.0)])


@pytest.mark.parametrize("quarantine", ["off", "preview"])
def test_a_policy_that_keeps_no_device_out_taints_the_node(quarantine: str) -> None:
    past = replay(AT_ONCE.replace("quarantine: rules", f"quarantine: {quarantine}"))
    past.take(T0, report(finding(1)))
    outcome = past.finish(T0 + 100)
    assert (devices(outcome), nodes(outcome)) == ([], [("n1", 0.0, 100.0)])


def test_too_many_bad_gpus_taint_the_node_and_then_it_is_one_again() -> None:
    past = replay()
    past.take(T0, report(finding(0)))
    past.take(T0 + 10, report(finding(0), finding(1, occurrence=2), finding(2, occurrence=3)))
    past.take(T0 + 20, report(finding(0, occurrence=4), boot="boot-2"))
    past.take(T0 + 30, report(boot="boot-3"))
    outcome = past.finish(T0 + 40)
    assert devices(outcome) == [("n1", gpu(0), 0.0, 10.0), ("n1", gpu(0), 20.0, 30.0)]
    assert nodes(outcome) == [("n1", 10.0, 20.0)]
    assert (outcome.devices.alone_s, outcome.devices.spared_s) == (20.0, 60.0)


def test_a_budget_of_devices_holds_and_who_waits_follows() -> None:
    past = replay(AT_ONCE + "pools: [{name: all, selector: {}, budget: {devices: 1}}]\n", nodes=2)
    past.take(T0, report(finding(0)))
    past.take(T0 + 10, report(finding(0), node="n2"))
    past.take(T0 + 20, report(boot="boot-2"))
    outcome = past.finish(T0 + 30)
    assert devices(outcome) == [("n1", gpu(0), 0.0, 20.0), ("n2", gpu(0), 20.0, 30.0)]
    assert [(each.node, each.since - T0, each.until - T0) for each in outcome.withheld_spells] == [("n2", 10.0, 20.0)]
    assert nodes(outcome) == []


def test_a_share_counts_the_devices_that_the_slices_name() -> None:
    past = replay(AT_ONCE + "pools: [{name: all, selector: {}, budget: {devices: 25%}}]\n", nodes=2)
    for number in (0, 1):
        past.take(T0 + number, report(finding(number), node=f"n{number + 1}"))
    past.take(T0 + 2, report(finding(0), finding(2, occurrence=2)))
    outcome = past.finish(T0 + 10)
    assert {(name, component) for name, component, _, _ in devices(outcome)} == {("n1", gpu(0)), ("n2", gpu(1))}
    assert outcome.withheld == {"n1"}  # two of eight devices are a quarter


def test_a_node_that_logs_late_has_its_devices_too() -> None:
    past = replay(nodes=1, slices=[resource_slice("n1"), resource_slice("n2")])
    past.take(T0, report(finding(3), node="n2"))
    assert devices(past.finish(T0 + 10)) == [("n2", gpu(3), 0.0, 10.0)]
