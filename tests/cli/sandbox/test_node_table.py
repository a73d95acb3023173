"""The fleet's rows: what a person sees of a node."""

from rich.console import Console
from tests.cli.withheld_taint import node_without_its_taint
from tests.wording.facts import missing_facts

from muster_cli.sandbox.node_table import SandboxRow, describe_changes, render_table, sandbox_rows
from muster_kube.api.objects import Metadata, Node, NodeSpec, Taint
from muster_kube.nodehealth import NodeHealth, NodeHealthStatus, ReportedCheck, ReportedFinding

OURS = Taint(key="muster.dev/faulty", value="true", effect="NoSchedule")


def node(name: str, *taints: Taint) -> Node:
    return Node(metadata=Metadata(name=name), spec=NodeSpec(taints=taints))


def health(name: str, verdict: str, *findings: ReportedFinding) -> NodeHealth:
    checks = (ReportedCheck(name="dmesg", verdict=verdict, findings=findings),)
    return NodeHealth(metadata=Metadata(name=name), status=NodeHealthStatus(verdict=verdict, checks=checks))


def test_a_node_without_a_word_from_its_agent_is_unknown() -> None:
    (row,) = sandbox_rows({"a": node("a")}, {}, first="a")
    assert (row.node, row.verdict, row.taints) == ("a", "UNKNOWN", ())
    assert row.message


def test_this_machine_stands_on_top_and_the_others_by_name() -> None:
    fleet = {name: node(name) for name in ("b", "a", "me")}
    assert [row.node for row in sandbox_rows(fleet, {}, first="me")] == ["me", "a", "b"]


def test_a_tainted_node_shows_its_worst_finding_and_the_taint_but_not_those_of_kubernetes() -> None:
    bad = ReportedFinding(component="gpu/0", reason="Xid79", verdict="FAIL", message="fell off the bus")
    other = ReportedFinding(component="gpu/1", reason="Xid31", verdict="WARN", message="page fault")
    unreachable = Taint(key="node.kubernetes.io/unreachable", effect="NoExecute")
    fleet = {"a": node("a", unreachable, OURS)}
    (row,) = sandbox_rows(fleet, {"a": health("a", "FAIL", bad, other)}, first="a")
    assert (row.node, row.verdict, row.taints) == ("a", "FAIL", ("muster.dev/faulty=true:NoSchedule",))
    assert row.message.startswith(bad.message)
    assert not missing_facts(row.message, "+1")


def test_only_what_changed_is_printed() -> None:
    before = {"a": SandboxRow("a", "PASS", "", ()), "b": SandboxRow("b", "FAIL", "x", ("k:NoSchedule",))}
    now = [SandboxRow("a", "PASS", "", ()), SandboxRow("b", "PASS", "", ())]
    (line,) = describe_changes(before, now)
    assert not missing_facts(line, "b", "FAIL -> PASS", "taint")


def test_a_fault_that_is_withheld_says_why_in_the_table_and_in_the_lines() -> None:
    why = "budget: pool all has 3 of 3 nodes tainted (30% of 8)"
    fleet = {"a": node_without_its_taint("a", why)}
    bad = ReportedFinding(component="gpu/0", reason="Xid79", verdict="FAIL", message="fell off the bus")
    (row,) = sandbox_rows(fleet, {"a": health("a", "FAIL", bad)}, first="a")
    assert row.withheld == why
    (line,) = describe_changes({}, [row])
    assert not missing_facts(line, bad.message)
    assert line.endswith(why)
    console = Console(width=200)
    with console.capture() as drawn:
        console.print(render_table([row], ""))
    assert why in drawn.get()
