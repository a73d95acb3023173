"""Decides for the scheduler's extender where a pod that asks for IPUs can get them. Pure.

A pod asks by the annotation ``graphcore.ai/ipus``. A pod that already has a partition goes where that partition is;
what is free no longer matters. Other pods are not restricted, among them those of IPUJobs, which have their IPUs by
the job and a node selector for its partition.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import msgspec

from muster_operator.job.ipu_pod import ANNOTATION
from muster_operator.job.partition_api import ControllerCapacity, PartitionEntry
from muster_operator.visibility.advertisement import serves
from muster_operator.visibility.ipu_capacity import STALE_S, Controllers

BEST_SCORE = 10  # MaxExtenderPriority in k8s.io/kube-scheduler/extender/v1
_SHOWN = 3  # controllers named in one reason
_REASON_LIMIT = 300  # characters; the scheduler joins the reasons of all nodes in one event


class FilterResult(msgspec.Struct, frozen=True, rename="pascal"):
    """The fields of ExtenderFilterResult that are used. failed_nodes: why each of the other nodes is unsuitable."""

    node_names: list[str]
    failed_nodes: dict[str, str]


class HostPriority(msgspec.Struct, frozen=True, rename="pascal"):
    """score: 0 to BEST_SCORE."""

    host: str
    score: int


@dataclass(frozen=True)
class IpuRequest:
    """What a pod asks for. ipus: None if the annotation is wrong; error: why."""

    ipus: int | None
    error: str = ""


@dataclass(frozen=True)
class IpuState:
    """controllers: None if not known; error: why. labels: of the known nodes among the candidates, by name."""

    controllers: Controllers | None
    error: str
    labels: Mapping[str, Mapping[str, str]]


def read_request(text: str | None, max_ipus: int) -> IpuRequest | None:
    """text: the annotation. None: the pod asks for no IPUs."""
    if text is None:
        return None
    ipus = int(text) if text.isascii() and text.isdecimal() and len(text) <= 9 else 0
    if ipus < 1 or ipus & (ipus - 1) or ipus > max_ipus:
        shown = text if len(text) <= 20 else f"{text[:20]}…"
        return IpuRequest(None, f"annotation {ANNOTATION}: {shown!r}: expected a power of two from 1 to {max_ipus}")
    return IpuRequest(ipus)


def filter_nodes(
    names: Iterable[str], request: IpuRequest | None, entries: Iterable[PartitionEntry], state: IpuState
) -> FilterResult:
    """entries: the pod's partitions."""
    held = list(entries)
    if request is None and not held:
        return FilterResult(list(names), {})
    suitable: list[str] = []
    failed: dict[str, str] = {}
    for name in names:
        if problem := _find_problem(state.labels.get(name), request, held, state):
            failed[name] = problem[:_REASON_LIMIT]
        else:
            suitable.append(name)
    return FilterResult(suitable, failed)


def score_nodes(
    names: Iterable[str], request: IpuRequest | None, entries: Iterable[PartitionEntry], state: IpuState
) -> list[HostPriority]:
    """The proxy places a partition with the first controller that has room, so its nodes are the best."""
    ipus = request.ipus if request is not None else None
    if ipus is None or any(True for _ in entries) or state.controllers is None:
        return [HostPriority(name, 0) for name in names]
    fitting = [each for each in state.controllers if _has_room(each, ipus)]

    def score(labels: Mapping[str, str]) -> int:
        rank = next((rank for rank, each in enumerate(fitting) if serves(each.selector, labels)), None)
        return 0 if rank is None else max(1, BEST_SCORE - rank)

    return [HostPriority(name, score(state.labels[name])) for name in names]


def _find_problem(
    labels: Mapping[str, str] | None, request: IpuRequest | None, held: list[PartitionEntry], state: IpuState
) -> str:
    """Why the node is unsuitable; empty if it is suitable."""
    if labels is None:
        return "unknown node: not in the operator's watch of nodes"
    if held:
        missing = [each.selector for each in held if not serves(each.selector, labels)]
        return f"the pod's V-IPU partition needs the label {missing[0]}" if missing else ""
    if request is None:
        return ""
    if request.ipus is None:
        return request.error
    if state.controllers is None:
        return f"free IPUs are unknown: {state.error}"
    serving = [each for each in state.controllers if serves(each.selector, labels)]
    if any(_has_room(each, request.ipus) for each in serving):
        return ""
    if not serving:
        selectors = list(dict.fromkeys(each.selector for each in state.controllers))
        return f"no V-IPU controller serves this node: expected a label of {_shorten(selectors) or 'a controller'}"
    return f"no room for {request.ipus} IPUs: {_shorten([_describe(each) for each in serving])}"


def _has_room(controller: ControllerCapacity, ipus: int) -> bool:
    return controller.ipus is not None and controller.ipus.largest >= ipus


def _describe(controller: ControllerCapacity) -> str:
    if controller.ipus is None:
        return f"{controller.controller} has not answered for {STALE_S:g} s"
    largest = f", at most {controller.ipus.largest} in one partition" if controller.ipus.largest else ""
    return f"{controller.controller} has {controller.ipus.free} free{largest}"


def _shorten(items: list[str]) -> str:
    more = len(items) - _SHOWN
    return "; ".join(items[:_SHOWN]) + (f"; and {more} more" if more > 0 else "")
