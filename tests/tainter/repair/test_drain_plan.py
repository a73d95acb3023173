"""Which pods of a tainted node go now, which stay, and which are waited for."""

from typing import Any

import msgspec
import pytest

from muster_kube.api.objects import Container, ContainerResources, Metadata, Node, OwnerReference
from muster_kube.api.times import rfc3339_whole
from muster_tainter.faults.desired_state import decide
from muster_tainter.faults.record.node_record import ANNOTATION, encode_record, read_record
from muster_tainter.policy.file import PolicyError, parse_policy
from muster_tainter.policy.rules import Policy
from muster_tainter.repair.drain_plan import (
    DrainClaim,
    DrainPod,
    DrainPodSpec,
    DrainPodStatus,
    DrainToleration,
    find_drain_order,
    has_accelerator,
    is_left_alone,
    sort_pods,
)

NOW = 1_800_000_000.0
RULES = "rules: [{name: hardware, match: {class: [reset, reboot, replace, contact]}, action: taint}]\n"


def policy(pool: str, rules: str = RULES) -> Policy:
    return parse_policy(f"{rules}pools: [{{name: all, selector: {{}}{pool and ', '}{pool}}}]")


NOW_ALL = policy("drain: {when: now}")
AFTER = policy("drain: {when: after, after: 30m}")
COMPLETION = policy("drain: {when: completion}")


def tainted(make: Any, policy: Policy, now: float = NOW, **finding: Any) -> Node:
    node: Node = make.node()
    for _ in range(2):
        node = decide(node, make.health(make.finding(**finding)), policy, now).applied(node)
    return node


def pod(name: str = "p", phase: str = "Running", **fields: Any) -> DrainPod:
    """fields: labels, annotations, owner (kind), deleting, resources, tolerations, claims, api (of the owner)."""
    owner = fields.get("owner")
    owners = (
        (OwnerReference(api_version=fields.get("api", "apps/v1"), kind=owner, name="o", uid="u", controller=True),)
        if owner
        else ()
    )
    resources = ContainerResources(limits=dict.fromkeys(fields.get("resources", ()), "1"))
    return DrainPod(
        metadata=Metadata(
            name=name,
            namespace="team",
            uid=f"uid-{name}",
            labels=fields.get("labels", {}),
            annotations=fields.get("annotations", {}),
            owner_references=owners,
            deletion_timestamp="2026-01-01T00:00:00Z" if fields.get("deleting") else "",
        ),
        spec=DrainPodSpec(
            containers=(Container(name="c", resources=resources),),
            tolerations=fields.get("tolerations", ()),
            resource_claims=fields.get("claims", ()),
        ),
        status=DrainPodStatus(phase=phase),
    )


GPU = pod("gpu", resources=("cpu", "nvidia.com/gpu"))
WEB = pod("web", owner="ReplicaSet")
DAEMON = pod("daemon", owner="DaemonSet", resources=("nvidia.com/gpu",))
STATIC = pod("static", annotations={"kubernetes.io/config.mirror": "x"})
FINISHED = (pod("done", "Succeeded", resources=("nvidia.com/gpu",)), pod("broken", "Failed"))
REPAIR = pod("muster-reset-1", labels={"muster.dev/repair": "reset"}, resources=("nvidia.com/gpu",))
ALL = (GPU, WEB, DAEMON, STATIC, *FINISHED, REPAIR)


def names(pods: tuple[DrainPod, ...]) -> list[str]:
    return [each.metadata.name for each in pods]


def sorted_by(make: Any, policy: Policy, pods: tuple[DrainPod, ...] = ALL, later: float = 0.0) -> Any:
    order = find_drain_order(tainted(make, policy), policy, NOW + later)
    assert order is not None
    return sort_pods(pods, order, NOW + later)


def test_at_once_all_go_but_those_of_daemonsets_static_finished_and_the_repairs_own(make: Any) -> None:
    found = sorted_by(make, NOW_ALL)
    assert (names(found.evict), names(found.left)) == (["gpu", "web"], ["gpu", "web"])


def test_only_pods_with_an_accelerator_where_the_pool_says_so(make: Any) -> None:
    found = sorted_by(make, policy("drain: {when: now, pods: accelerator}"))
    assert (names(found.evict), names(found.left)) == (["gpu"], ["gpu"])


def test_completion_evicts_nobody_and_waits_for_accelerators_only(make: Any) -> None:
    found = sorted_by(make, COMPLETION, later=86_400.0 * 30)
    assert (names(found.evict), names(found.left), found.look_at) == ([], ["gpu"], float("inf"))


def test_after_its_time_since_the_taint_and_not_before(make: Any) -> None:
    early = sorted_by(make, AFTER, later=1799.0)
    assert (names(early.evict), names(early.left), early.look_at) == ([], ["gpu", "web"], NOW + 1800.0)
    late = sorted_by(make, AFTER, later=1800.0)
    assert names(late.evict) == ["gpu", "web"]


def test_the_time_counts_from_the_fault_that_is_drained_for(make: Any) -> None:
    """The node was tainted for long, for something that drains nobody."""
    drains = parse_policy("""
rules: [{name: a, match: {reason: Xid79}, action: taint}, {name: b, match: {reason: Xid95}, action: taint}]
pools: [{name: all, selector: {}, drain: {when: after, after: 1h}}]
""")
    node = tainted(make, drains)
    first = make.finding()
    over = make.cleared()
    later = NOW + 7200.0
    health = make.health(make.finding("Xid95", 2), cleared=(over,))
    node = decide(node, make.health(first, make.finding("Xid95", 2)), drains, later).applied(node)
    node = decide(node, health, drains, later + 1).applied(node)
    order = find_drain_order(node, drains, later + 1)
    assert order is not None
    assert (order.since, [fault.reason for fault in order.faults]) == (later, ["Xid95"])


def test_a_pod_that_goes_already_is_waited_for_and_not_evicted_again(make: Any) -> None:
    found = sorted_by(make, NOW_ALL, (pod("gpu", resources=("amd.com/gpu",), deleting=True),))
    assert (names(found.evict), names(found.left)) == ([], ["gpu"])


@pytest.mark.parametrize(("toleration", "stays"), [
    (DrainToleration(operator="Exists"), True),
    (DrainToleration(key="muster.dev/faulty", operator="Exists", effect="NoSchedule"), True),
    (DrainToleration(key="muster.dev/faulty", value="true"), True),
    (DrainToleration(key="muster.dev/faulty", operator="Equal", value="other"), False),
    (DrainToleration(key="muster.dev/faulty", operator="Exists", effect="NoExecute"), False),
    (DrainToleration(key="node.kubernetes.io/not-ready", operator="Exists"), False),
])  # fmt: skip
def test_who_tolerates_the_taint_would_come_right_back_and_stays(
    make: Any, toleration: DrainToleration, stays: bool
) -> None:
    plain = pod("web", tolerations=(toleration,))
    holder = pod("gpu", tolerations=(toleration,), resources=("nvidia.com/gpu",))
    found = sorted_by(make, NOW_ALL, (plain, holder))
    assert names(found.evict) == ([] if stays else ["web", "gpu"])
    assert names(found.left) == (["gpu"] if stays else ["web", "gpu"])  # nobody repairs under a running job


@pytest.mark.parametrize(("resource", "is_one"), [
    ("nvidia.com/gpu", True), ("amd.com/gpu", True), ("nvidia.com/mig-1g.5gb", True), ("cpu", False),
    ("memory", False), ("hugepages-2Mi", False), ("kubernetes.io/batch-cpu", False), ("x.kubernetes.io/y", False),
])  # fmt: skip
def test_what_counts_as_an_accelerator(resource: str, is_one: bool) -> None:
    assert has_accelerator(pod(resources=(resource,))) is is_one
    init = Container(name="i", resources=ContainerResources(requests={resource: "1"}))
    assert has_accelerator(DrainPod(metadata=Metadata(name="p"), spec=DrainPodSpec(init_containers=(init,)))) is is_one


def test_claims_and_pods_of_ipu_jobs_hold_an_accelerator() -> None:
    assert has_accelerator(pod(claims=(DrainClaim(name="gpu"),)))
    assert has_accelerator(pod(owner="IPUJob", api="graphcore.ai/v1alpha1"))
    assert not has_accelerator(pod(owner="Job", api="batch/v1"))


def test_a_pod_as_the_server_sends_it_is_read() -> None:
    raw = """{"metadata": {"name": "p", "namespace": "n", "ownerReferences": [{"apiVersion": "apps/v1", "kind":
    "DaemonSet", "name": "d", "uid": "u", "controller": true}]}, "spec": {"nodeName": "x", "containers": [{"name": "c",
    "resources": {"limits": {"nvidia.com/gpu": "8"}}}], "tolerations": [{"operator": "Exists"}], "resourceClaims":
    [{"name": "r", "resourceClaimTemplateName": "t"}]}, "status": {"phase": "Running"}}"""
    found = msgspec.json.decode(raw, type=DrainPod)
    assert (is_left_alone(found), has_accelerator(found)) == (True, True)


# whether a node is drained at all


def test_a_pool_that_says_nothing_drains_nobody(make: Any) -> None:
    plain = policy("")
    assert find_drain_order(tainted(make, plain), plain, NOW) is None


def test_a_rule_may_drain_by_itself_and_then_at_once(make: Any) -> None:
    drains = policy("", "rules: [{name: a, match: {reason: Xid79}, action: drain}]\n")
    order = find_drain_order(tainted(make, drains), drains, NOW)
    assert order is not None
    assert (order.drain.when, order.by_policy) == ("now", True)


def test_the_pools_word_counts_more_than_the_rules(make: Any) -> None:
    drains = policy("drain: {when: completion}", "rules: [{name: a, match: {reason: Xid79}, action: drain}]\n")
    order = find_drain_order(tainted(make, drains), drains, NOW)
    assert order is not None
    assert order.drain.when == "completion"


def test_a_node_without_a_taint_of_ours_is_not_drained(make: Any) -> None:
    node = decide(make.node(), make.health(make.finding(fault_class="")), NOW_ALL, NOW).applied(make.node())
    assert find_drain_order(node, NOW_ALL, NOW) is None
    bad = tainted(make, NOW_ALL)
    lost = msgspec.structs.replace(bad, spec=msgspec.structs.replace(bad.spec, taints=()))
    assert find_drain_order(lost, NOW_ALL, NOW) is None


def test_a_node_that_is_not_managed_or_going_is_not_drained(make: Any) -> None:
    bad = tainted(make, NOW_ALL)
    meta = bad.metadata
    hands_off = msgspec.structs.replace(meta, labels={**meta.labels, "muster.dev/managed": "false"})
    going = msgspec.structs.replace(meta, deletion_timestamp="2026-01-01T00:00:00Z")
    assert find_drain_order(bad, NOW_ALL, NOW) is not None
    for each in (hands_off, going):
        assert find_drain_order(msgspec.structs.replace(bad, metadata=each), NOW_ALL, NOW) is None


def with_memory(node: Node, **fault: Any) -> Node:
    memory = read_record(node)
    changed = msgspec.structs.replace(memory, open=(msgspec.structs.replace(memory.open[0], **fault),))
    annotations = {**node.metadata.annotations, ANNOTATION: encode_record(changed) or ""}
    return msgspec.structs.replace(node, metadata=msgspec.structs.replace(node.metadata, annotations=annotations))


def test_a_fault_that_is_over_and_only_held_drains_nobody(make: Any) -> None:
    held = with_memory(tainted(make, NOW_ALL), over=rfc3339_whole(NOW), how="driver")
    assert find_drain_order(held, NOW_ALL, NOW) is None


def test_a_silent_agent_drains_nobody(make: Any) -> None:
    """Nothing is known of such a node, and a bad release of the agent silences all of them."""
    taints = parse_policy("""
rules: []
deadMan: {action: taint, grace: 1m}
pools: [{name: all, selector: {}, drain: {when: now}}]
""")
    from muster_tainter.faults.decision_context import DecisionContext

    finding = make.finding("AgentSilent", component="host", fault_class="")
    around = DecisionContext(external={("agent", "host", "AgentSilent"): finding})
    node = make.node()
    node = decide(node, make.health(), taints, NOW, context=around).applied(node)
    assert [taint.key for taint in node.spec.taints] == ["muster.dev/unknown"]
    assert find_drain_order(node, taints, NOW) is None


def test_a_taint_whose_memory_was_lost_drains_nobody(make: Any) -> None:
    node = make.node(make.faulty, **{ANNOTATION: "garbage"})
    node = decide(node, make.health(), NOW_ALL, NOW).applied(node)
    assert node.spec.taints == (make.faulty,)
    assert find_drain_order(node, NOW_ALL, NOW) is None


def test_a_rule_that_says_event_by_now_drains_nobody(make: Any) -> None:
    event = policy("drain: {when: now}", "rules: [{name: hardware, action: event}]\n")
    assert find_drain_order(tainted(make, NOW_ALL), event, NOW) is None


@pytest.mark.parametrize(("text", "place"), [
    ("{when: later}", 'pools[0].drain.when: "later":'),
    ("{when: after}", "pools[0].drain: "),
    ("{when: now, after: 30m}", "pools[0].drain: "),
    ("{when: after, after: 30}", "pools[0].drain.after: 30:"),
    ("{when: now, pods: gpus}", 'pools[0].drain.pods: "gpus":'),
    ("{wen: now}", "pools[0].drain.wen:"),
])  # fmt: skip
def test_what_a_drain_may_not_say(text: str, place: str) -> None:
    with pytest.raises(PolicyError) as told:
        policy(f"drain: {text}")
    assert place in str(told.value)
