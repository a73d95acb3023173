"""Turns the outcome of a pod into an attempt. Pure functions."""

from muster_kube.api.objects import Node
from muster_tainter.outcomes.evidence import Attempt
from muster_tainter.outcomes.kinds import ADMISSION, DEVICE_ALLOCATION, KIND_OF, Stage
from muster_tainter.outcomes.pods import Devices, PodOutcome


def kind_on(node: Node, outcome: PodOutcome) -> str | None:
    """As in the outcome, unless the pod asked for devices that the node does not offer, or may not have offered then.

    The scheduler sends no such pod there. A tenant can, with spec.nodeName: to a node without these devices, or to
    one whose device plug-in is being replaced. ``node`` says what it offers now, which is no evidence about a pod that
    was listed. Its time would not tell either: a rejected pod has that of its creation, by another machine's clock.
    """
    if outcome.kind == DEVICE_ALLOCATION and (outcome.listed or not _offers(node, outcome.devices)):
        return ADMISSION
    return outcome.kind


def attempt_of(outcome: PodOutcome, kind: str | None, host_kinds: frozenset[str]) -> Attempt | None:
    """kind: of :func:`kind_on`. host_kinds: those that count and that no tenant controls.

    ``outcome.at``: when the pod ended, or when it was seen not to have started. None: it says nothing.
    """
    if kind is None:
        return None
    passed: frozenset[str] = frozenset()
    if not kind or KIND_OF[kind].stage is not Stage.ADMISSION:
        # nothing was allocated for a pod without devices: a node whose devices are lost still runs such pods
        passed = host_kinds if outcome.devices else host_kinds - {DEVICE_ALLOCATION}
    return Attempt(
        node=outcome.node,
        owner=outcome.owner,
        namespace=outcome.namespace,
        kind=kind,
        failed=bool(kind),
        at=outcome.at,
        started=outcome.created,
        pod=outcome.uid,
        passed=passed,
    )


def _offers(node: Node, devices: Devices) -> bool:
    """Whether the Node says that it has these devices. A pod without devices asks for none."""
    offered = node.status.allocatable
    return bool(devices) and all(_number(offered.get(name, "0")) >= count for name, count in devices)


def _number(quantity: str) -> int:
    """Of whole devices; Kubernetes writes 2000 as 2k. What is not understood is none."""
    number, unit = (quantity[:-1], 1000) if quantity.endswith("k") else (quantity, 1)
    return int(number) * unit if number.isascii() and number.isdecimal() and len(number) < 10 else 0
