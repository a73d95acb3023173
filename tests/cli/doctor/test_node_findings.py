"""Whether each node has an agent that works, and whether the clocks agree."""

from typing import Any

import msgspec
from tests.wording.facts import missing_facts

from muster_checks.base.vocabulary import Verdict
from muster_cli.doctor.facts import EventFacts, HealthFacts, PodFacts, Workload, WorkloadToleration
from muster_cli.doctor.findings import DoctorFinding
from muster_cli.doctor.judges import agents, clocks, reports
from muster_cli.doctor.judges.parts import INSTALL
from muster_kube.api.objects import Metadata, Node, NodeCondition, NodeSpec, NodeStatus, Taint
from muster_kube.api.times import rfc3339, rfc3339_whole
from muster_kube.controller.lease import Lease

NOW = 1_800_000_000.0
OLD = rfc3339_whole(NOW - 3600)


def daemon(**template: Any) -> Workload:
    body = {
        "metadata": {"name": "autopilot-daemon-gc", "namespace": "autopilot"},
        "spec": {"template": {"spec": {"tolerations": [{"operator": "Exists"}], **template}}},
        "status": {"desiredNumberScheduled": 1},
    }
    return msgspec.convert(body, type=Workload)


def node(name: str, *taints: Taint, **labels: str) -> Node:
    return Node(metadata=Metadata(name=name, labels=labels), spec=NodeSpec(taints=taints))


def agent(node: str, *, ready: bool = True, made: str = OLD, uid: str = "u", **status: Any) -> PodFacts:
    conditions = [{"type": "Ready", "status": "True" if ready else "False"}]
    body = {
        "metadata": {"name": f"agent-{node}", "namespace": "autopilot", "uid": uid, "creationTimestamp": made},
        "spec": {"nodeName": node},
        "status": {"phase": "Running", "conditions": conditions, **status},
    }
    return msgspec.convert(body, type=PodFacts)


def health(node: str, *, verdict: str = "PASS", uid: str = "u", ahead: float = 0.0) -> HealthFacts:
    body = {
        "metadata": {"name": node},
        "status": {"verdict": verdict, "agent": {"podUID": uid}, "observedAt": rfc3339(NOW - 600 + ahead)},
    }
    return msgspec.convert(body, type=HealthFacts)


def judge(nodes: list[Node], pods: list[PodFacts], healths: list[HealthFacts], **given: Any) -> list[DoctorFinding]:
    known = {each.metadata.name: each for each in healths}
    events: list[EventFacts] = given.get("events", [])
    return agents.judge(nodes, given.get("daemon", daemon()), pods, events, known, NOW)


def test_nodes_whose_agents_report_are_fine() -> None:
    (found,) = judge([node("a")], [agent("a")], [health("a")])
    assert (found.area, found.verdict, found.mend) == ("agents", Verdict.PASS, "")
    assert not missing_facts(found.what, "1 node")


def test_node_outside_the_selector_is_reported_with_the_missing_label() -> None:
    (found,) = judge([node("a")], [], [], daemon=daemon(nodeSelector={"gpu": "yes"}))
    assert not missing_facts(found.what, "1 node (a)", "agent.nodeSelector", "gpu=yes")
    assert found.verdict is Verdict.WARN
    command = "kubectl label node a muster.dev/managed=false"
    assert command in found.mend


def test_a_node_that_is_left_alone_is_to_have_no_agent() -> None:
    alone = node("b", **{"muster.dev/managed": "false"})
    chosen = daemon(nodeSelector={"gpu": "yes"})
    (found,) = judge([node("a", gpu="yes"), alone], [agent("a")], [health("a")], daemon=chosen)
    assert found.verdict is Verdict.PASS
    assert found.what.count("1 node") == 2
    assert not missing_facts(found.what, "muster.dev/managed=false")


def test_a_taint_that_keeps_the_agent_off_is_named() -> None:
    taint = Taint(key="site/x", effect="NoExecute")
    (found,) = judge([node("a", taint)], [], [], daemon=daemon(tolerations=[{"key": "y", "operator": "Exists"}]))
    assert found.verdict is Verdict.FAIL
    assert not missing_facts(found.what, "site/x:NoExecute")
    assert "agent.tolerations" in found.mend


def test_a_node_without_an_agent_and_without_a_reason_points_to_the_daemonset() -> None:
    (found,) = judge([node("a")], [], [])
    command = "kubectl -n autopilot describe daemonset autopilot-daemon-gc"
    assert found.mend == command


def test_nodes_of_one_reason_are_one_finding_with_some_of_their_names() -> None:
    waiting = {"waiting": {"reason": "ImagePullBackOff"}}
    ill = [agent(f"n{i}", ready=False, containerStatuses=[{"name": "agent", "state": waiting}]) for i in range(9)]
    (found,) = judge([node(f"n{i}") for i in range(9)], ill, [])
    assert not missing_facts(found.what, "9 nodes", "n0, n1, n2", "6", "agent: ImagePullBackOff")


def test_a_pod_of_the_daemonset_that_is_bound_nowhere_belongs_to_its_node() -> None:
    fields = [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["a"]}]}]
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": fields}}}
    full = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "Insufficient memory"}
    body = {
        "metadata": {"name": "p", "namespace": "autopilot", "creationTimestamp": OLD},
        "spec": {"affinity": affinity},
        "status": {"phase": "Pending", "conditions": [full]},
    }
    (found,) = judge([node("a")], [msgspec.convert(body, type=PodFacts)], [])
    assert "Unschedulable: Insufficient memory" in found.what


def test_a_new_agent_is_given_its_time() -> None:
    young = agent("a", ready=False, made=rfc3339_whole(NOW - 20))
    assert [each.verdict for each in judge([node("a")], [young], [])] == [Verdict.PASS]


def test_silent_agent_differs_from_missing_nodehealth() -> None:
    (silent,) = judge([node("a")], [agent("a")], [health("a", verdict="")])
    (without,) = judge([node("a")], [agent("a")], [])
    assert "kubectl -n autopilot logs agent-a" in silent.mend
    assert "NodeHealth" in without.what
    assert "NodeHealth" not in silent.what


def test_a_nodehealth_that_speaks_for_a_pod_that_is_gone_is_stale() -> None:
    (stale,) = judge([node("a")], [agent("a", uid="new")], [health("a", uid="old")])
    assert stale.verdict is not Verdict.PASS
    assert not missing_facts(stale.what, "1 node (a)", "NodeHealth")
    assert "kubectl -n autopilot logs agent-a" in stale.mend


def test_daemonset_with_rejected_pods_is_reported_with_the_reason() -> None:
    body = {
        "metadata": {"name": "e"},
        "involvedObject": {"kind": "DaemonSet", "name": "autopilot-daemon-gc"},
        "reason": "FailedCreate",
        "message": "violates PodSecurity restricted",
    }
    found = judge([node("a")], [], [], events=[msgspec.convert(body, type=EventFacts)])
    assert any(body["message"] in each.what and "enforce=privileged" in each.mend for each in found)


def test_agents_without_a_daemonset_are_judged_all_the_same() -> None:
    (found,) = judge([node("a")], [], [], daemon=None)
    assert found.verdict is not Verdict.PASS
    assert (missing_facts(found.what, "1 node (a)"), found.mend) == ([], INSTALL)


def test_what_a_toleration_covers() -> None:
    taint = Taint(key="k", value="v", effect="NoSchedule")
    assert agents.is_tolerated(taint, [WorkloadToleration(operator="Exists")])
    assert agents.is_tolerated(taint, [WorkloadToleration(key="k", value="v")])
    assert not agents.is_tolerated(taint, [WorkloadToleration(key="k", value="w")])
    assert not agents.is_tolerated(taint, [WorkloadToleration(key="k", operator="Exists", effect="NoExecute")])
    assert agents.is_tolerated(Taint(key="k", effect="PreferNoSchedule"), [])


def lease(node: str, ahead: float) -> Lease:
    return msgspec.convert({"metadata": {"name": node}, "spec": {"renewTime": rfc3339(NOW + ahead)}}, type=Lease)


def of_clocks(here: float, *skews: tuple[str, float], ready: bool = True, **said: float) -> list[DoctorFinding]:
    """skews: of the kubelets' Leases; said: of the agents' last words."""
    conditions = (NodeCondition(type="Ready", status="True" if ready else "Unknown"),)
    names = sorted({name for name, _ in skews} | set(said))
    nodes = [Node(metadata=Metadata(name=name), status=NodeStatus(conditions=conditions)) for name in names]
    healths = {name: health(name, ahead=600 + ahead) for name, ahead in said.items()}
    return clocks.judge(NOW, here, nodes, {name: lease(name, ahead) for name, ahead in skews}, healths)


def test_clocks_that_agree_are_fine() -> None:
    assert [each.verdict for each in of_clocks(NOW + 2, ("a", -9), ("b", 3), c=-7200)] == [Verdict.PASS]


def test_this_machines_clock_is_held_against_the_api_servers() -> None:
    (found,) = of_clocks(NOW - 90)
    assert found.verdict is Verdict.WARN
    assert not missing_facts(found.what, "90 s", "behind", "API server")


def test_a_nodes_clock_is_held_against_the_api_servers_by_its_lease() -> None:
    (found,) = of_clocks(NOW, ("a", 1800), ("b", 0), ("c", -300))
    assert not missing_facts(found.what, "2 nodes (a, c)", "30 min", "ahead")


def test_lease_of_a_removed_node_does_not_judge_its_clock() -> None:
    assert [each.verdict for each in of_clocks(NOW, ("c", -300), ready=False)] == [Verdict.PASS]


def test_an_agent_that_speaks_from_the_future_has_a_wrong_clock() -> None:
    assert [each.verdict for each in of_clocks(NOW, a=60)] == [Verdict.FAIL]


def reported(
    node: str, occurrence: int, *, clear: int = 0, component: str = "gpu/0", check: str = "dmesg"
) -> HealthFacts:
    finding = {"component": component, "reason": "Xid79", "verdict": "FAIL", "occurrence": occurrence}
    clears = [{"check": check, "component": "*", "occurrence": clear}] if clear else []
    checks = [{"name": "dmesg", "verdict": "FAIL", "findings": [finding]}]
    body = {"metadata": {"name": node}, "spec": {"clear": clears}, "status": {"verdict": "FAIL", "checks": checks}}
    return msgspec.convert(body, type=HealthFacts)


def test_nodes_with_forged_occurrences_are_named_with_the_command_that_heals_them() -> None:
    healths = [reported("a", 3, clear=3), reported("b", 2**53), reported("c", 3, clear=2**53)]
    (found,) = reports.judge({each.metadata.name: each for each in healths})
    assert (found.area, found.verdict) == ("reports", Verdict.WARN)
    assert not missing_facts(found.what, "b", "c")
    assert not missing_facts(found.mend, "kubectl delete nodehealth")
    assert "a," not in found.what


def test_a_report_with_an_invalid_part_is_named_with_the_part() -> None:
    (found,) = reports.judge({"a": reported("a", 3, component="*"), "b": reported("b", 3)})
    assert (found.area, found.verdict) == ("reports", Verdict.FAIL)
    assert not missing_facts(found.what, "a", "status.checks[0].findings[0]", "component")


def test_sources_that_number_by_time_are_not_suspicious() -> None:
    assert reports.judge({"a": reported("a", 3, clear=1_800_000_000_000, check="loki")}) == []
