"""Whom a node's fault concerns beside the node, and what they are told. Pure.

Pods that hold accelerators there, and the objects that made them: whoever looks at a job that is slow or has died finds
the node's fault with it.
"""

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass

from muster_checks.base.vocabulary import shorten
from muster_kube.api.objects import Api, Container, Metadata, ObjectReference, OwnerReference
from muster_tainter.faults.desired_state import Decision
from muster_tainter.faults.messages import describe_fault, format_taint
from muster_tainter.faults.node_record import Fault, OurTaint
from muster_tainter.faults.policy_match import confirmed_at, match_policy
from muster_tainter.policy.rules import Policy

REASON = "NodeFaulty"
FRESH_S = 600.0
"""A leader that has just begun tells what is as young as this: the one before may not have come to it. What it has told
has the same name, and is not told again."""
NAMED_FAULTS = 4  # the others are counted
NAMED_PODS = 5

_MESSAGE_LIMIT = 1000  # bytes; the API takes 1024 characters
_NAME_LIMIT = 253 - 17
_FINISHED = ("Succeeded", "Failed")
_OWNER_GROUPS = ("graphcore.ai/",)  # their pods reach IPUs over the network: no resource of the node says so
_GROUPS_OF_A_MIDDLEMAN = {"ReplicaSet": "apps", "Job": "batch"}
# whoever makes a pod may write anything as its owner; nothing else becomes part of an API path
_VERSION = re.compile(r"v[0-9][0-9a-z]{0,30}")
_OWNER_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")


class WorkClaim(Api, frozen=True):
    """Of dynamic resource allocation."""

    name: str = ""


class WorkSpec(Api, frozen=True):
    containers: tuple[Container, ...] = ()
    init_containers: tuple[Container, ...] = ()
    resource_claims: tuple[WorkClaim, ...] = ()


class WorkStatus(Api, frozen=True):
    phase: str = ""


class WorkPod(Api, frozen=True):
    """A pod, as far as it matters whether it works on accelerators and for whom."""

    metadata: Metadata
    spec: WorkSpec = WorkSpec()
    status: WorkStatus = WorkStatus()


@dataclass(frozen=True)
class Concern:
    """A fault that is acted upon by ``taint``, or would be: withheld says why it is not; empty: it is."""

    fault: Fault
    rule: str
    taint: OurTaint
    drain: bool = False
    withheld: str = ""

    @property
    def id(self) -> tuple[str, ...]:
        """The same as long as it is the same news, however often the fault fires anew meanwhile."""
        return (*self.fault.key, self.fault.since, "withheld" if self.withheld else "tainted")


def find_concerns(decision: Decision, policy: Policy, now: float) -> list[Concern]:
    """The open faults of the node that is decided on which somebody has to hear of, the oldest first."""
    found = []
    for fault in decision.memory.open:
        want = match_policy(fault, policy)
        if want.taint is None or fault.over or confirmed_at(fault, want, now) > now:
            continue
        withheld = "" if want.taint in decision.memory.ours else decision.withheld
        found.append(Concern(fault, want.rule, want.taint, want.drain, withheld))
    return sorted(found, key=lambda concern: (concern.fault.since, concern.id))


def holds_accelerator(pod: WorkPod, prefixes: tuple[str, ...]) -> bool:
    """prefixes: of resource names. A claim of dynamic resource allocation counts whatever it is for."""
    if pod.spec.resource_claims:
        return True
    for container in (*pod.spec.containers, *pod.spec.init_containers):
        resources = container.resources
        for name, quantity in (*resources.requests.items(), *resources.limits.items()):
            if name.startswith(prefixes) and quantity != "0":
                return True
    return any(owner.api_version.startswith(_OWNER_GROUPS) for owner in pod.metadata.owner_references)


def find_affected_pods(pods: Iterable[WorkPod], prefixes: tuple[str, ...]) -> list[WorkPod]:
    """Those of a node's pods that are told, in a fixed order."""
    chosen = [
        pod
        for pod in pods
        if pod.status.phase not in _FINISHED
        and not pod.metadata.deletion_timestamp
        and holds_accelerator(pod, prefixes)
    ]
    return sorted(chosen, key=lambda pod: (pod.metadata.namespace, pod.metadata.name))


def controller_of(metadata: Metadata) -> OwnerReference | None:
    """What made the object; None: nothing, or (a static pod) its node."""
    for owner in metadata.owner_references:
        if owner.controller and owner.kind != "Node":
            return owner
    return None


def is_middleman(owner: OwnerReference) -> bool:
    """What people look at may be the owner's own owner: a Deployment, a JobSet, a CronJob."""
    group, _, version = owner.api_version.partition("/")
    return (
        _GROUPS_OF_A_MIDDLEMAN.get(owner.kind) == group
        and _VERSION.fullmatch(version) is not None
        and _OWNER_NAME.fullmatch(owner.name) is not None
    )


def pod_reference(pod: WorkPod) -> ObjectReference:
    meta = pod.metadata
    return ObjectReference(kind="Pod", name=meta.name, namespace=meta.namespace, uid=meta.uid, api_version="v1")


def owner_reference(owner: OwnerReference, namespace: str) -> ObjectReference:
    return ObjectReference(
        kind=owner.kind, name=owner.name, namespace=namespace, uid=owner.uid, api_version=owner.api_version
    )


def event_name(about: ObjectReference, node: str, concern: Concern) -> str:
    """The same for the same news, whoever tells it."""
    text = "\0".join((about.uid, node, *concern.id))
    digest = hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
    return f"{about.name[:_NAME_LIMIT].rstrip('-.')}.{digest}"


def format_message(node: str, concerns: list[Concern], who: str) -> str:
    """``node n7 is tainted …: dmesg gpu/0000:3b:00.0 Xid79: …; this pod runs there, …``. concerns: at least one."""
    first = concerns[0]
    others = [" ".join(each.fault.key) for each in concerns[1:NAMED_FAULTS]]
    if len(concerns) > NAMED_FAULTS:
        others.append(f"{len(concerns) - NAMED_FAULTS} more")
    what = shorten(describe_fault(first.fault), _MESSAGE_LIMIT // 2) + (
        f" (also {', '.join(others)})" if others else ""
    )
    if first.withheld:
        state = f"node {node} is faulty (rule {first.rule})"
        after = f"it is not tainted now ({shorten(first.withheld)}), so more pods may come there"
    else:
        state = f"node {node} is tainted {format_taint(first.taint)} (rule {first.rule})"
        after = _next(first)
    return shorten(f"{state}: {what}; {who} there; {after}", _MESSAGE_LIMIT)


def _next(concern: Concern) -> str:
    if concern.drain:
        return "its pods are evicted as its pool's drain says"
    match concern.taint.effect:
        case "NoExecute":
            return "pods that do not tolerate the taint are evicted"
        case "PreferNoSchedule":
            return "what runs there is left alone, new pods go elsewhere where they can"
        case _:
            return "what runs there is left alone, new pods go elsewhere until the node is proven good"


def pods_run(names: list[str]) -> str:
    """Of an owner's pods: ``its pods a and b run``."""
    shown = names[:NAMED_PODS]
    more = f" and {len(names) - NAMED_PODS} more" if len(names) > NAMED_PODS else ""
    return f"its pod {shown[0]} runs" if len(names) == 1 else f"its pods {', '.join(shown)}{more} run"
