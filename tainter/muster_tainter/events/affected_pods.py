"""Which pods and owners a node's fault affects, and the text of their Events. Pure functions.

Affected are pods that hold accelerators on the node, and the objects that created them, so that the user of a slow or
failed job finds the node's fault on the job.
"""

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass

from muster_checks.base.vocabulary import shorten
from muster_kube.api.objects import Api, Container, Metadata, ObjectReference, OwnerReference
from muster_tainter.faults.desired_state import Decision
from muster_tainter.faults.messages import describe_fault, format_taint
from muster_tainter.faults.policy_match import confirmed_at, match_policy
from muster_tainter.faults.record.node_record import Fault, OurTaint
from muster_tainter.policy.rules import Policy

REASON = "NodeFaulty"
FRESH_S = 600.0
"""A new leader notifies about faults younger than this, as the previous leader may not have done so. An Event that
exists already has the same name and is not created twice."""
NAMED_FAULTS = 4  # the rest are counted
NAMED_PODS = 5

_MESSAGE_LIMIT = 1000  # bytes; the API takes 1024 characters
_NAME_LIMIT = 253 - 17
_FINISHED = ("Succeeded", "Failed")
_OWNER_GROUPS = ("graphcore.ai/",)  # their pods reach IPUs over the network: no node resource shows it
_GROUPS_OF_A_MIDDLEMAN = {"ReplicaSet": "apps", "Job": "batch"}
_VERSION = re.compile(r"v[0-9][0-9a-z]{0,30}")
_OWNER_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")


class WorkClaim(Api, frozen=True):
    """A claim of dynamic resource allocation."""

    name: str = ""


class WorkSpec(Api, frozen=True):
    containers: tuple[Container, ...] = ()
    init_containers: tuple[Container, ...] = ()
    resource_claims: tuple[WorkClaim, ...] = ()


class WorkStatus(Api, frozen=True):
    phase: str = ""


class WorkPod(Api, frozen=True):
    """The fields of a pod that show whether it uses accelerators, and for which owner."""

    metadata: Metadata
    spec: WorkSpec = WorkSpec()
    status: WorkStatus = WorkStatus()


@dataclass(frozen=True)
class Concern:
    """A fault that ``taint`` acts on, or would act on. withheld: why the taint is not set; empty if it is."""

    fault: Fault
    rule: str
    taint: OurTaint
    drain: bool = False
    withheld: str = ""

    @property
    def id(self) -> tuple[str, ...]:
        """Constant while the fault stays open, even if it occurs again."""
        return (*self.fault.key, self.fault.since, "withheld" if self.withheld else "tainted")


def find_concerns(decision: Decision, policy: Policy, now: float) -> list[Concern]:
    """The node's open faults that its pods need to know about, oldest first."""
    found = []
    for fault in decision.memory.open:
        want = match_policy(fault, policy)
        if want.taint is None or fault.over or confirmed_at(fault, want, now) > now:
            continue
        withheld = "" if want.taint in decision.memory.ours else decision.withheld
        found.append(Concern(fault, want.rule, want.taint, want.drain, withheld))
    return sorted(found, key=lambda concern: (concern.fault.since, concern.id))


def holds_accelerator(pod: WorkPod, prefixes: tuple[str, ...]) -> bool:
    """prefixes: of resource names. Any claim of dynamic resource allocation counts."""
    if pod.spec.resource_claims:
        return True
    for container in (*pod.spec.containers, *pod.spec.init_containers):
        resources = container.resources
        for name, quantity in (*resources.requests.items(), *resources.limits.items()):
            if name.startswith(prefixes) and quantity != "0":
                return True
    return any(owner.api_version.startswith(_OWNER_GROUPS) for owner in pod.metadata.owner_references)


def find_affected_pods(pods: Iterable[WorkPod], prefixes: tuple[str, ...]) -> list[WorkPod]:
    """The node's pods to notify, in a fixed order."""
    chosen = [
        pod
        for pod in pods
        if pod.status.phase not in _FINISHED
        and not pod.metadata.deletion_timestamp
        and holds_accelerator(pod, prefixes)
    ]
    return sorted(chosen, key=lambda pod: (pod.metadata.namespace, pod.metadata.name))


def controller_of(metadata: Metadata) -> OwnerReference | None:
    """The object's controller; None if it has none or, for a static pod, the node."""
    for owner in metadata.owner_references:
        if owner.controller and owner.kind != "Node":
            return owner
    return None


def is_middleman(owner: OwnerReference) -> bool:
    """Whether the owner may itself have an owner that users look at: a Deployment, a JobSet, a CronJob."""
    group = owner.api_version.partition("/")[0]
    return _GROUPS_OF_A_MIDDLEMAN.get(owner.kind) == group and is_path_safe(owner)


def is_path_safe(owner: OwnerReference) -> bool:
    """Whether its version and name may be parts of an API path: whoever creates a pod may write anything there."""
    version = owner.api_version.partition("/")[2]
    return _VERSION.fullmatch(version) is not None and _OWNER_NAME.fullmatch(owner.name) is not None


def pod_reference(pod: WorkPod) -> ObjectReference:
    meta = pod.metadata
    return ObjectReference(kind="Pod", name=meta.name, namespace=meta.namespace, uid=meta.uid, api_version="v1")


def owner_reference(owner: OwnerReference, namespace: str) -> ObjectReference:
    return ObjectReference(
        kind=owner.kind, name=owner.name, namespace=namespace, uid=owner.uid, api_version=owner.api_version
    )


def event_name(about: ObjectReference, node: str, concern: Concern) -> str:
    """Deterministic, so that every leader uses the same name for the same Event."""
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
        after = f"it is not tainted now ({shorten(first.withheld)}), so more pods may be scheduled there"
    else:
        state = f"node {node} is tainted {format_taint(first.taint)} (rule {first.rule})"
        after = _next(first)
    return shorten(f"{state}: {what}; {who} there; {after}", _MESSAGE_LIMIT)


def _next(concern: Concern) -> str:
    if concern.drain:
        return "its pods will be evicted, as configured by the pool's drain"
    match concern.taint.effect:
        case "NoExecute":
            return "pods that do not tolerate the taint are evicted"
        case "PreferNoSchedule":
            return "running pods are not evicted; new pods are scheduled elsewhere if possible"
        case _:
            return "running pods are not evicted; new pods are scheduled elsewhere until the node passes verification"


def pods_run(names: list[str]) -> str:
    """Subject and verb for an owner's pods: ``its pods a and b run``."""
    shown = names[:NAMED_PODS]
    more = f" and {len(names) - NAMED_PODS} more" if len(names) > NAMED_PODS else ""
    return f"its pod {shown[0]} runs" if len(names) == 1 else f"its pods {', '.join(shown)}{more} run"
