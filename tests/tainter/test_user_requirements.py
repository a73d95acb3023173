"""What users of systems of this kind wish for and none gives them (each test's name says which), and the three holes
that the strongest of them admits. Decisions, ledger, proofs and plan are the real ones; nodes and agents are values.
"""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.kube.conftest import FakeApi, Reply, Stream, Wire
from tests.tainter.verification.proved_node import ProvedNode
from tests.tainter.verification.test_fleet_plan import answer, asks, health, last, ours, planned

from muster_cli.__main__ import main
from muster_kube.api.client import KubeClient
from muster_kube.api.config import ClusterConfig
from muster_kube.api.objects import Metadata, Node, Taint
from muster_kube.nodehealth import PATH, ClearEntry, NodeHealth, ReportedFinding
from muster_tainter.controller import Tainter
from muster_tainter.events.affected_pods import find_concerns, format_message
from muster_tainter.explain.explanation import format_explanation
from muster_tainter.explain.node import explain_node
from muster_tainter.explain.replay import PolicyReplay, ReplayOutcome
from muster_tainter.faults.decision_context import DecisionContext
from muster_tainter.faults.desired_state import Decision, decide, recall_record
from muster_tainter.faults.record.node_record import ANNOTATION
from muster_tainter.fleet.replica import Connections, Replica
from muster_tainter.metrics import TainterMetrics
from muster_tainter.policy.file import LivePolicy, default_policy_text, load_policy
from muster_tainter.policy.rules import SILENT, Policy

T0 = 1_767_225_600.0  # 2026-01-01T00:00:00Z
HOUR = 3600.0
SHIPPED = load_policy(None)
RULES = "rules: [{name: hw, match: {class: [reset, reboot, replace, contact]}, action: taint, holdDown: 0s}]\n"

PolicyOf = Callable[[str], Policy]


def settled(node: Node, health: NodeHealth, policy: Policy = SHIPPED, now: float = T0, **around: Any) -> Node:
    """The Node once what was decided is written; a second look finds nothing more to do."""
    made = decide(node, health, policy, now, {}, DecisionContext(**around)).applied(node)
    assert not decide(made, health, policy, now, {}, DecisionContext(**around)).writes
    return made


def keys(node: Node) -> list[str]:
    return [taint.key for taint in node.spec.taints]


def fleet(policy: Policy, count: int, **labels: str) -> PolicyReplay:
    return PolicyReplay(policy, [Node(metadata=Metadata(name=f"n{n}", labels=labels)) for n in range(count)])


def of(name: str, health: NodeHealth) -> NodeHealth:
    return msgspec.structs.replace(health, metadata=Metadata(name=name))


def tainted_at(outcome: ReplayOutcome) -> list[tuple[str, float]]:
    return [(spell.node, spell.since - T0) for spell in sorted(outcome.spells, key=lambda spell: spell.since)]


async def test_wish_1_what_the_watch_brings_is_one_patch_away_from_the_taint(make: Any) -> None:
    api = FakeApi()
    await api.start()
    node = {"metadata": {"name": "n1", "uid": "u", "resourceVersion": "5", "labels": {"muster.dev/health": "pass"}}}
    well = msgspec.to_builtins(of("n1", make.health()))
    ill = msgspec.to_builtins(of("n1", make.health(make.finding())))
    ill["metadata"]["resourceVersion"] = "7"
    items = {"metadata": {"resourceVersion": "6"}}
    api.on("GET", "/api/v1/nodes", Reply(200, items | {"items": [node]}))
    api.on("GET", PATH, Reply(200, items | {"items": [well]}))
    api.on("WATCH", "/api/v1/nodes", Stream())
    api.on("WATCH", PATH, Stream((json.dumps({"type": "MODIFIED", "object": ill}).encode() + b"\n",)))
    api.on("PATCH", "/api/v1/nodes/n1", Reply(200, node | {"metadata": node["metadata"] | {"resourceVersion": "8"}}))
    async with KubeClient(
        ClusterConfig(origin="test", server=f"http://127.0.0.1:{api.port}"), timeout_s=30.0
    ) as client:
        tainter = Tainter(
            Connections.shared(client), lambda: SHIPPED, Replica(may_write=lambda: True), TainterMetrics()
        )
        running = asyncio.gather(tainter.watch(), tainter.lead())
        await Wire.until(lambda: bool(api.asked_for("PATCH", "/api/v1/nodes/n1")))
        about_it = [asked.method for asked in api.asked if "/n1" in asked.path]
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    await api.stop()
    assert about_it[0] == "PATCH"  # nothing is asked first: what the watches brought is all that is needed
    patch = api.asked_for("PATCH", "/api/v1/nodes/n1")[0]  # its answer has no taint, so there may be more
    body = json.loads(patch.body)
    assert [taint["key"] for taint in body["spec"]["taints"]] == ["muster.dev/faulty"]
    assert body["metadata"]["labels"]["muster.dev/faulty"] == "true"
    assert "Xid79" in body["metadata"]["annotations"][ANNOTATION]


class TestWish2:
    """Budgets on the level and on the rate, for each pool and failure domain, with so many healthy in each."""

    @pytest.mark.parametrize(("budget", "hours"), [
        ("{tainted: 3}", [0, 1, 2]),  # the level
        ("{rate: {nodes: 1, within: 90m}}", [0, 1.5, 3, 4.5, 6]),
        ("{perDomain: 50%}", [0, 1, 2, 3]),  # of the rack
        ("{healthyPerDomain: 6}", [0, 1]),  # six of the rack stay
        ("{tainted: 5, healthyPerDomain: 6, rate: {nodes: 1, within: 90m}}", [0, 1.5]),  # all of them at once
        ("{}", [0, 1, 2, 3, 4, 5, 6, 7]),
    ])  # fmt: skip
    def test_wish_2_each_kind_of_budget_binds(
        self, make: Any, policy_of: PolicyOf, budget: str, hours: list[float]
    ) -> None:
        pool = f"pools: [{{name: all, selector: {{matchLabels: {{gpu: h100}}}}, domain: rack, budget: {budget}}}]"
        replay = fleet(policy_of(RULES + pool), 8, gpu="h100", rack="r1")
        for n in range(8):  # one an hour
            replay.take(T0 + n * HOUR, of(f"n{n}", make.health(make.finding())))
        assert [at / HOUR for _, at in tainted_at(replay.finish(T0 + 7 * HOUR))] == hours


class TestWish3:
    """A brake that never blocks recovery, lets go by itself on evidence, and taints nothing again that was released."""

    POOL = "pools: [{name: all, selector: {}, budget: {tainted: 1}}]"

    def test_wish_3_a_full_budget_blocks_no_recovery_and_its_room_is_used_by_itself(
        self, make: Any, policy_of: PolicyOf
    ) -> None:
        replay = fleet(policy_of(RULES + self.POOL), 3)
        replay.take(T0, of("n0", make.health(make.finding())))
        replay.take(T0 + 60, of("n1", make.health(make.finding())))
        replay.take(T0 + 600, of("n0", make.health(boot="boot-2")))  # the proof that the fault is over
        outcome = replay.finish(T0 + 900)
        assert tainted_at(outcome) == [("n0", 0.0), ("n1", 600.0)]
        assert [(s.node, s.since - T0, s.until - T0) for s in outcome.withheld_spells] == [("n1", 60.0, 600.0)]

    def test_wish_3_what_was_released_is_not_tainted_by_lifting_the_brake(self, make: Any) -> None:
        said = make.health(
            make.finding(occurrence=3), clear=(ClearEntry("dmesg", "*", 3, "ada", "2026-01-01T00:00:00Z"),)
        )
        node = settled(make.node(), make.health(make.finding(occurrence=3)))
        node = settled(node, said, withhold="paused by ada: a bad switch")
        assert keys(node) == []
        assert keys(settled(node, said)) == []  # resumed, with the finding still there
        assert keys(settled(node, make.health(make.finding(occurrence=4)))) == ["muster.dev/faulty"]


def test_wish_4_the_failed_check_runs_again_on_the_tainted_node_and_has_to_pass_as_often_as_the_rule_says() -> None:
    node = ProvedNode()
    node.fails("pciebw")
    node.settle()
    node.after(61)
    [asked] = node.asked()
    assert (asked.checks, asked.params["runs"], node.tainted) == (("pciebw",), "3", True)
    node.answer("FAIL")
    node.after(1)
    assert node.tainted
    node.after(HOUR)
    node.answer("PASS")
    node.after(1)
    assert (node.tainted, node.proved_over()) == (False, ["pciebw"])


TWO = """
rules:
  - {name: gpus, match: {component: "gpu/*"}, action: taint, taint: {key: example.com/gpu}}
  - {name: nics, match: {component: "nic/*"}, action: taint, taint: {key: example.com/nic, effect: NoExecute}}
"""


def test_wish_5_each_cause_has_its_own_taint_with_evidence_that_comes_and_goes_alone(
    make: Any, policy_of: PolicyOf
) -> None:
    gpu, nic = make.finding(), make.finding("LinkDown", 2, component="nic/mlx5_0", message="port 1: no carrier")
    node = settled(make.node(), make.health(gpu, nic), policy_of(TWO))
    assert keys(node) == ["example.com/gpu", "example.com/nic"]
    assert {(fault.rule, fault.message) for fault in recall_record(node).open} == {
        ("gpus", gpu.message), ("nics", "port 1: no carrier")}  # fmt: skip
    over = make.cleared(occurrence=2, reason="LinkDown", component="nic/mlx5_0")
    node = settled(node, make.health(gpu, cleared=(over,)), policy_of(TWO))
    assert keys(node) == ["example.com/gpu"]
    node = settled(node, make.health(boot="boot-2"), policy_of(TWO))
    assert (keys(node), node.metadata.labels) == ([], {"muster.dev/health": "pass"})


def test_wish_6_the_third_flap_of_a_day_holds_the_node_longer_than_the_second(make: Any, policy_of: PolicyOf) -> None:
    replay = fleet(policy_of(RULES.replace("0s", "10m")), 1)
    for n in range(1, 4):
        replay.take(T0 + n * 2 * HOUR, of("n0", make.health(make.finding(occurrence=n))))
        replay.take(T0 + n * 2 * HOUR + 60, of("n0", make.health(cleared=(make.cleared(occurrence=n),))))
    first, second, third = (spell.until - spell.since for spell in replay.finish(T0 + 24 * HOUR).spells)
    assert first == 60
    assert second > 60 + 300
    assert third > 1.5 * second


@pytest.mark.parametrize(("action", "taints"), [("event", []), ("taint", ["muster.dev/unknown"])])
def test_wish_7_a_node_without_a_fresh_verdict_is_unknown_and_by_policy_unschedulable(
    make: Any, policy_of: PolicyOf, action: str, taints: list[str]
) -> None:
    policy = policy_of(RULES + f"deadMan: {{action: {action}}}")
    silent = ReportedFinding(
        component="host", reason="AgentSilent", verdict="FAIL", occurrence=1, message="since 17 days"
    )
    node = settled(make.node(), make.health(), policy)
    assert node.metadata.labels["muster.dev/health"] == "pass"
    node = settled(node, make.health(), policy, external={SILENT: silent})
    assert (node.metadata.labels["muster.dev/health"], keys(node)) == ("unknown", taints)
    back = {SILENT: (make.cleared("source", component="host", reason="AgentSilent"),)}
    node = settled(node, make.health(), policy, T0 + 60, over=back)
    assert (node.metadata.labels["muster.dev/health"], keys(node)) == ("pass", [])


def test_wish_8_one_short_file_says_severity_alone_or_together_and_action_and_is_reloaded_and_tried_on_a_log(
    make: Any, tmp_path: Path
) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text("""
incidents: {nodes: 3, within: 60s}
rules:
  - {name: switch, match: {reason: Xid74, correlated: 2}, action: event}
  - {name: link, match: {reason: Xid74}, for: 60s, action: taint}
""")
    live = LivePolicy(file)
    found = make.finding("Xid74", fault_class="reset")
    together, alone = fleet(live.current, 3), fleet(live.current, 3)
    for n in range(3):
        together.take(T0 + n, of(f"n{n}", make.health(found)))
        alone.take(T0 + n * HOUR, of(f"n{n}", make.health(found)))
    assert [tainted_at(each.finish(T0 + 5 * HOUR)) for each in (together, alone)][1] == [
        ("n0", 60.0), ("n1", HOUR + 60.0), ("n2", 2 * HOUR + 60.0)]  # fmt: skip
    assert "n2" not in dict(tainted_at(together.outcome))
    file.write_text("rules: [{name: link, match: {reason: Xid74}, action: ignore}]")
    assert live.reload()
    assert keys(settled(make.node(), make.health(found), live.current)) == []


def test_wish_9_a_policy_is_tried_on_logs_of_the_past(tmp_path: Path, capsys: Any) -> None:
    kernel = tmp_path / "node-7.log"
    kernel.write_text(
        "2026-01-01T01:00:00,000000+00:00 NVRM: Xid (PCI:0000:3b:00): 79, pid=1, GPU has fallen off the bus.\n"
    )
    for number, (action, tainted) in enumerate((("taint", 1), ("event", 0))):
        policy = tmp_path / f"{number}.yaml"
        policy.write_text(f"rules: [{{name: hw, match: {{reason: Xid79}}, action: {action}}}]")
        assert main(["replay", str(policy), "--log", str(kernel), "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["nodesTainted"] == tainted


def test_wish_10_the_chain_of_evidence_is_in_one_command_and_in_the_taints_annotation(make: Any) -> None:
    said = make.health(make.finding())
    node = settled(make.node(), said)
    told = "\n".join(format_explanation(explain_node(node, said, SHIPPED, T0 + 60)))
    annotation = node.metadata.annotations[ANNOTATION]
    for part in ("GPU has fallen off the bus", "gpu/0000:3b:00.0", "hardware", "2026-01-01T00:00:00Z"):
        assert part in told, told
        assert part in annotation
    assert "muster.dev/faulty=true:NoSchedule" in told


class TestWish11:
    """Invasive checks in idle windows: a cap over the fleet, every node in time, and out of a job's way."""

    def test_wish_11_only_idle_nodes_are_asked_and_no_more_than_the_cap(self) -> None:
        nodes = [health(f"n{n}", "pciebw", idle="" if n == 0 else None) for n in range(6)]
        assert asks(planned(*nodes, text="{atOnce: 2}")) == [("n1", "pciebw"), ("n2", "pciebw")]

    def test_wish_11_the_node_whose_last_test_is_oldest_comes_first(self) -> None:
        nodes = [health("n1", "pciebw", past=last(30)), health("n2", "pciebw", past=last(24 * 7))]
        assert asks(planned(*nodes)) == [("n2", "pciebw")]

    def test_wish_11_a_node_that_a_job_took_back_lets_the_next_one_test(self) -> None:
        request = ours()
        busy = health("n1", requests=(request,), answers=(answer(request, "UNKNOWN", "Busy"),), idle="")
        assert asks(planned(busy, health("n2", "pciebw"))) == [("n2", "pciebw")]


@pytest.mark.parametrize(("line", "tainted"), [
    ("mlx5_core 0000:3b:00.0: AER: PCIe Bus Error: severity=Uncorrectable (Fatal), type=Transaction Layer", 1),
    ("mce: [Hardware Error]: CPU 12: Machine Check Exception: 5 Bank 7: be00004000010090", 1),
    ("EDAC MC0: 1 UE memory read error on DIMM A 1 (channel:0 slot:0)", 1),
    ("nvme nvme0: Removing after probe failure status: -19", 1),
    ("watchdog: Watchdog detected hard LOCKUP on cpu 3", 1),
    ("NVRM: Xid (PCI:0000:3b:00): 79, pid=1, GPU has fallen off the bus.", 1),
    ("EDAC MC0: 1 CE memory read error on CPU_SrcID#0_MC#1_Chan#0_DIMM#0 (channel:0 slot:0 page:0x1)", 0),
    ("rcu: INFO: rcu_preempt self-detected stall on CPU", 0),
])  # fmt: skip
def test_wish_14_one_policy_for_all_that_the_kernel_says(tmp_path: Path, capsys: Any, line: str, tainted: int) -> None:
    (tmp_path / "n1.log").write_text(f"2026-01-01T01:00:00,000000+00:00 {line}\n")
    (tmp_path / "policy.yaml").write_text(default_policy_text())
    assert main(["replay", str(tmp_path / "policy.yaml"), "--log", str(tmp_path / "n1.log"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["nodesTainted"] == tainted


def test_wish_15_a_job_is_told_of_its_nodes_fault_before_anything_is_evicted(make: Any, policy_of: PolicyOf) -> None:
    policy = policy_of("rules: [{name: hw, action: drain}]")
    decision: Decision = decide(make.node(), make.health(make.finding()), policy, T0)
    [concern] = find_concerns(decision, policy, T0)
    assert (concern.rule, concern.drain) == ("hw", True)
    text = format_message("n1", [concern], "WHO")
    for part in ("n1", "muster.dev/faulty", "hw", "fallen off the bus", "WHO"):
        assert part in text


class TestHoles:
    """What the strongest public system says it cannot do."""

    def test_hole_1_no_event_can_be_skipped_as_the_state_is_what_is_looked_at(self, make: Any) -> None:
        unseen = [make.health(make.finding(occurrence=n), boot=f"boot-{n}") for n in range(1, 9)]
        node = settled(make.node(), unseen[-1])  # of eight reports only the last was ever delivered
        assert keys(node) == ["muster.dev/faulty"]
        # all through the repair nobody led: the first look at what is now is enough
        assert keys(settled(node, make.health(boot="boot-20"))) == []

    def test_hole_2_nodes_that_fail_more_slowly_than_any_rate_meet_the_level(
        self, make: Any, policy_of: PolicyOf
    ) -> None:
        pool = "pools: [{name: all, selector: {}, budget: {tainted: 30%, rate: {nodes: 50%, within: 5m}}}]"
        replay = fleet(policy_of(RULES + pool), 10)
        for n in range(10):
            replay.take(T0 + n * 24 * HOUR, of(f"n{n}", make.health(make.finding())))
        outcome = replay.finish(T0 + 10 * 24 * HOUR)
        assert (outcome.at_once, len(outcome.withheld)) == (3, 7)

    def test_hole_3_nothing_that_was_released_is_tainted_again_by_a_reset(self, make: Any, policy_of: PolicyOf) -> None:
        found = make.finding(occurrence=3)
        node = settled(make.node(), make.health(found))
        clear = ClearEntry("dmesg", "*", 3, "ada", "2026-01-01T00:00:00Z")
        node = settled(node, make.health(found, clear=(clear,)), withhold="paused by ada")
        # resumed, another leader, an edited policy, and the words of the release gone from the NodeHealth
        for policy in (SHIPPED, policy_of(RULES), policy_of("rules: [{name: everything, action: taint}]")):
            node = settled(node, make.health(found), policy, T0 + HOUR)
            assert keys(node) == []
        theirs = Taint(key="example.com/theirs", effect="NoSchedule")
        node = msgspec.structs.replace(node, spec=msgspec.structs.replace(node.spec, taints=(theirs,)))
        assert keys(settled(node, make.health(found))) == ["example.com/theirs"]
