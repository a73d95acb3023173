"""What the Nodes and NodeHealths say about spares: the plan's values, and the role of a node for people. Pure."""

from collections.abc import Collection, Iterable, Iterator, Mapping

import msgspec

from muster_kube.api.objects import Node
from muster_kube.api.times import seconds
from muster_kube.nodehealth import NodeHealth
from muster_tainter.faults.desired_state import READY, Decision, is_managed, is_ours
from muster_tainter.faults.record.check_history import read_history
from muster_tainter.faults.record.node_record import NodeRecord, read_record
from muster_tainter.faults.role_record import ROLE_KEY, read_role_record
from muster_tainter.policy.pools import Pool
from muster_tainter.policy.rules import SPARE_KEY, STARTUP_KEY, Policy
from muster_tainter.policy.sections.heavy_checks import DAY_S
from muster_tainter.policy.spares import SpareRole, Spares
from muster_tainter.spares.plan import GroupState, SpareNode, TaintSlot, plan_spares

_KEEPS_WORK_OFF = ("NoSchedule", "NoExecute")
_CHOICES = {"true": True, "false": False}

GroupKey = tuple[str, str]  # pool; domain, if the number of spares is per domain


class NodeRole(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """A spare or a replacement, for display.

    since: RFC 3339, empty if not known; replaces: of a replacement, the node with a fault; why: what keeps a spare from
    being ready, empty if it is ready
    """

    role: SpareRole
    since: str = ""
    replaces: str = ""
    ready: bool = False
    why: tuple[str, ...] = ()

    def __str__(self) -> str:
        if self.role is SpareRole.REPLACEMENT:
            return f"replacement for {self.replaces or 'a node with a fault'}"
        return "spare, ready" if self.ready else f"spare, not ready: {'; '.join(self.why)}"


def node_role(
    node: Node, health: object, policy: Policy, now: float, common: Collection[TaintSlot] = ()
) -> NodeRole | None:
    """None if it is neither. common: taints of others that most nodes of its group have; now: seconds since the
    epoch."""
    role = role_of(node)
    if role is SpareRole.NONE:
        return None
    record = read_role_record(node)
    since = record.since if record.role is role else ""
    if role is SpareRole.REPLACEMENT:
        return NodeRole(role=role, since=since, replaces=record.replaces)
    why = tuple(_why_not_ready(node, health, policy, now, common))
    return NodeRole(role=role, since=since, ready=not why, why=why)


def spare_groups(
    nodes: Iterable[Node], healths: Mapping[str, NodeHealth], policy: Policy, now: float
) -> list[GroupState]:
    """The groups of all pools that keep spares. A pool without nodes has one that is empty, unless it counts per
    domain."""
    groups: dict[GroupKey, list[SpareNode]] = {
        (pool.name, ""): [] for pool in policy.pools if pool.spares is not None and pool.spares.per_domain is None
    }
    for node in nodes:
        place = group_of(node, policy)
        if place is not None:
            key, pool = place
            groups.setdefault(key, []).append(spare_node(node, healths.get(node.metadata.name), pool))
    spares = {pool.name: pool.spares for pool in policy.pools if pool.spares is not None}
    return [
        GroupState(*key, plan_spares(group, own, ready_after=now - ready_within(own, policy)))
        for key, group in sorted(groups.items())
        if (own := spares[key[0]])
    ]


def group_of(node: Node, policy: Policy) -> tuple[GroupKey, Pool] | None:
    """None if its pool keeps no spares, or Muster does not manage it."""
    pool = policy.pool_of(node.metadata.labels) if is_managed(node) else None
    if pool is None or pool.spares is None or node.metadata.deletion_timestamp:
        return None
    return (pool.name, pool.domain_of(node.metadata.labels) if pool.spares.per_domain is not None else ""), pool


def ready_within(spares: Spares, policy: Policy) -> float:
    """In seconds."""
    return spares.ready_within or policy.testing.coverage


def role_of(node: Node) -> SpareRole:
    """As written on the Node: the taint decides, not the label, which a kubelet may be able to set."""
    if any(taint.key == SPARE_KEY for taint in node.spec.taints):
        return SpareRole.SPARE
    replaces = node.metadata.labels.get(ROLE_KEY) == SpareRole.REPLACEMENT
    return SpareRole.REPLACEMENT if replaces else SpareRole.NONE


def spare_node(node: Node, health: object, pool: Pool, decision: Decision | None = None) -> SpareNode:
    """decision: what is about to be written."""
    memory = read_record(node)
    had = bool(memory.ours) or _is_new(node)
    if decision is not None:
        memory, node = decision.memory, decision.applied(node)
    labels = node.metadata.labels
    reported = isinstance(health, NodeHealth) and health.status.agent.pod_uid and not _is_new(node)
    checks = pool.spares.checks if pool.spares is not None else ()
    return SpareNode(
        name=node.metadata.name,
        domain=pool.domain_of(labels),
        role=role_of(node),
        out=_since(memory),
        usable=bool(reported)
        and isinstance(health, NodeHealth)
        and health.status.verdict not in ("", "FAIL")
        and not memory.open
        and not node.spec.unschedulable
        and any(each.type == READY and each.status == "True" for each in node.status.conditions),
        idle=isinstance(health, NodeHealth) and bool(health.status.idle_since),
        proven=had and not memory.ours and not _is_new(node),
        choice=_CHOICES.get(labels.get(SPARE_KEY, "")),
        tested_at=_tested_at(health, checks or pool.testing.pre_flight) if isinstance(health, NodeHealth) else 0.0,
        foreign=tuple(
            sorted(
                (taint.key, taint.effect)
                for taint in node.spec.taints
                if taint.effect in _KEEPS_WORK_OFF and not is_ours(taint, memory)
            )
        ),
        replaces=read_role_record(node).replaces,
    )


def _since(memory: NodeRecord) -> float:
    """When the node was tainted for a fault; 0: it is not."""
    return (seconds(memory.tainted) if memory.tainted else 0.0) or 1.0 if memory.ours else 0.0


def _is_new(node: Node) -> bool:
    return any(taint.key == STARTUP_KEY for taint in node.spec.taints)


def _tested_at(health: NodeHealth, checks: tuple[str, ...]) -> float:
    """When the oldest of the ``checks`` last measured something; 0: never. Empty: all that the plan runs there and that
    are installed on the node."""
    return min(_tests(health, checks).values(), default=0.0)


def _tests(health: NodeHealth, checks: tuple[str, ...]) -> dict[str, float]:
    past = read_history(health).checks
    wanted = checks or tuple(
        check for check in {*past, *health.status.due} if not (check in past and past[check].missing)
    )
    return {check: seconds(past[check].at) if check in past and past[check].at else 0.0 for check in wanted}


def _why_not_ready(
    node: Node, health: object, policy: Policy, now: float, common: Collection[TaintSlot]
) -> Iterator[str]:
    """Nothing exactly if :meth:`SpareNode.is_ready`."""
    place = group_of(node, policy)
    if place is None:
        yield "its pool keeps no spares"
        return
    _, pool = place
    facts, memory = spare_node(node, health, pool), read_record(node)
    if not isinstance(health, NodeHealth) or not health.status.agent.pod_uid or not health.status.verdict:
        yield "no agent reports"
    elif health.status.verdict == "FAIL":
        yield "its last report is FAIL"
    yield from (f"open fault {' '.join(fault.key)}" for fault in memory.open[:1])
    if node.spec.unschedulable:
        yield "cordoned"
    if not any(each.type == READY and each.status == "True" for each in node.status.conditions):
        yield "not Ready"
    if _is_new(node):
        yield f"taint {STARTUP_KEY}"
    yield from (f"taint {key}:{effect}" for key, effect in facts.foreign if (key, effect) not in common)
    if not isinstance(health, NodeHealth):
        return
    if not facts.idle and health.status.verdict:
        yield "not idle"
    within = ready_within(pool.spares, policy) if pool.spares is not None else 0.0
    if facts.tested_at <= now - within:
        tests = _tests(health, (pool.spares.checks if pool.spares is not None else ()) or pool.testing.pre_flight)
        old = sorted(check for check, at in tests.items() if at <= now - within)
        span = f"{within / DAY_S:g} d" if within >= DAY_S else f"{within / 3600:g} h"
        yield f"no result of {', '.join(old)} within {span}" if old else "no full test is known"
