"""Decides which pods of a tainted node are evicted now, which stay, and which the drain waits for. Pure functions.

Only nodes with a taint of ours are drained, so the taint budgets also limit drains. No state is kept: the annotation
holds the time of the taint, and the node's pods show what is left.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from muster_kube.api.objects import Api, Container, Metadata, Node, Taint
from muster_kube.api.times import seconds
from muster_tainter.faults.desired_state import is_managed
from muster_tainter.faults.policy_match import confirmed_at, match_policy
from muster_tainter.faults.record.node_record import LOST_CHECK, Fault, NodeRecord, as_our_taint, read_record
from muster_tainter.policy.repair import AT_ONCE, LABEL, Drain
from muster_tainter.policy.rules import SILENT, Policy

_NEVER = float("inf")
_FINISHED = ("Succeeded", "Failed")
_MIRROR = "kubernetes.io/config.mirror"  # annotation of a static pod's mirror in the API
_KUBERNETES_OWN = "kubernetes.io"
_IPU_JOB = ("graphcore.ai/", "IPUJob")  # its pods hold IPUs without any node resource


class DrainToleration(Api, frozen=True):
    key: str = ""
    operator: str = ""
    value: str = ""
    effect: str = ""


class DrainClaim(Api, frozen=True):
    name: str = ""


class DrainPodSpec(Api, frozen=True):
    node_name: str = ""
    containers: tuple[Container, ...] = ()
    init_containers: tuple[Container, ...] = ()
    tolerations: tuple[DrainToleration, ...] = ()
    resource_claims: tuple[DrainClaim, ...] = ()


class DrainPodStatus(Api, frozen=True):
    phase: str = ""


class DrainPod(Api, frozen=True):
    """The fields of a pod that a drain needs."""

    metadata: Metadata
    spec: DrainPodSpec = DrainPodSpec()
    status: DrainPodStatus = DrainPodStatus()

    @property
    def key(self) -> str:
        return f"{self.metadata.namespace}/{self.metadata.name}"


@dataclass(frozen=True)
class DrainOrder:
    """A node to be drained. since: when the faults or the taint began, in seconds since the epoch; taints: ours on it;
    faults: the reason; by_policy: the policy requires it, not only a repair."""

    drain: Drain
    since: float
    taints: tuple[Taint, ...]
    faults: tuple[Fault, ...]
    by_policy: bool

    @property
    def evict_at(self) -> float:
        if self.drain.when == "completion":
            return _NEVER
        return self.since + (self.drain.after or 0.0)


@dataclass(frozen=True)
class SortedPods:
    """evict: to be evicted now; left: must end before the node is empty enough for a repair, including evicted pods;
    look_at: when time alone changes this."""

    evict: tuple[DrainPod, ...] = ()
    left: tuple[DrainPod, ...] = ()
    look_at: float = _NEVER


def faults_to_act_on(node: Node, memory: NodeRecord, policy: Policy, now: float) -> tuple[Fault, ...]:
    """Open faults whose taint of ours is on the node, that are not resolved and whose cause is known.

    Excluded are resolved faults that are only held, silent agents, which say nothing about the node, and taints whose
    record was lost.
    """
    if not is_managed(node) or node.metadata.deletion_timestamp:
        return ()
    there = {as_our_taint(taint) for taint in node.spec.taints} & set(memory.ours)
    result = []
    for fault in memory.open:
        if fault.over or fault.check == LOST_CHECK or fault.key == SILENT:
            continue
        want = match_policy(fault, policy)
        if want.taint is not None and want.taint in there and confirmed_at(fault, want, now) <= now:
            result.append(fault)
    return tuple(result)


def find_drain_order(node: Node, policy: Policy, now: float) -> DrainOrder | None:
    """None: the node is not drained."""
    memory = read_record(node)
    if not memory.ours:
        return None
    faults = faults_to_act_on(node, memory, policy, now)
    if not faults:
        return None
    pool = policy.pool_of(node.metadata.labels)
    asking = tuple(fault for fault in faults if match_policy(fault, policy).drain)
    if pool is not None and pool.drain is not None:
        drain, asking = pool.drain, faults
    elif asking:
        drain = AT_ONCE
    elif pool is not None and pool.repair is not None:
        drain, asking = Drain(), ()
    else:
        return None
    since = max(seconds(memory.tainted), min(seconds(fault.since) for fault in asking or faults))
    taints = tuple(taint for taint in node.spec.taints if as_our_taint(taint) in memory.ours)
    return DrainOrder(drain, since, taints, asking or faults, by_policy=bool(asking))


def sort_pods(pods: Iterable[DrainPod], order: DrainOrder, now: float) -> SortedPods:
    """Decide about each of a node's ``pods``."""
    evict, left = [], []
    waits = False
    for pod in pods:
        if is_left_alone(pod):
            continue
        accelerator = has_accelerator(pod)
        movable = (order.drain.pods == "all" or accelerator) and not _tolerates(pod, order.taints)
        if accelerator or (movable and order.drain.when != "completion"):
            left.append(pod)
        if movable and not pod.metadata.deletion_timestamp:
            if order.evict_at <= now:
                evict.append(pod)
            else:
                waits = True
    return SortedPods(tuple(evict), tuple(left), order.evict_at if waits else _NEVER)


def is_left_alone(pod: DrainPod) -> bool:
    """Finished, a static pod's mirror, a DaemonSet's (it would be recreated at once), or a repair's."""
    meta = pod.metadata
    return (
        pod.status.phase in _FINISHED
        or _MIRROR in meta.annotations
        or LABEL in meta.labels
        or any(owner.controller and owner.kind == "DaemonSet" for owner in meta.owner_references)
    )


def has_accelerator(pod: DrainPod) -> bool:
    """It holds a device of its node, through a device plug-in or a resource claim, or IPUs. Network cards count too:
    accelerators are only waited for."""
    if pod.spec.resource_claims:
        return True
    for container in (*pod.spec.containers, *pod.spec.init_containers):
        for name in (*container.resources.limits, *container.resources.requests):
            domain, slash, _ = name.rpartition("/")
            if slash and domain != _KUBERNETES_OWN and not domain.endswith("." + _KUBERNETES_OWN):
                return True
    return any(
        owner.api_version.startswith(_IPU_JOB[0]) and owner.kind == _IPU_JOB[1]
        for owner in pod.metadata.owner_references
    )


def _tolerates(pod: DrainPod, taints: tuple[Taint, ...]) -> bool:
    """It would be rescheduled to the node at once, and its tolerations allow it to be there."""
    return all(any(covers(each, t.key, t.value, t.effect) for each in pod.spec.tolerations) for t in taints)


def covers(toleration: DrainToleration, key: str, value: str, effect: str) -> bool:
    """Whether it tolerates a taint, as in k8s.io/api/core/v1, Toleration.ToleratesTaint; those of devices
    (resource.k8s.io/v1, DeviceToleration) have the same rules."""
    if toleration.effect and toleration.effect != effect:
        return False
    if toleration.key and toleration.key != key:
        return False
    if toleration.operator == "Exists":
        return True
    return bool(toleration.key) and toleration.operator in ("", "Equal") and toleration.value == value
