"""Reads the past of a fleet: its Nodes and NodeHealths, and Prometheus where there is one."""

import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import msgspec

from muster_kube.api.client import KubeClient
from muster_kube.api.objects import Metadata
from muster_kube.api.times import rfc3339_whole
from muster_kube.nodehealth import PATH as HEALTHS
from muster_kube.nodehealth import NodeHealth
from muster_tainter.faults.record.node_record import CLOSED_FOR_S
from muster_tainter.policy.sections.sources import HttpSource
from muster_tainter.simulation.history.fleet_groups import FleetGroups, PastNode, make_groups
from muster_tainter.simulation.history.object_memory import remember_health, remember_node
from muster_tainter.simulation.history.past_faults import PastFaults, PastRows
from muster_tainter.simulation.history.prometheus_history import PrometheusPast, read_past
from muster_tainter.sources.http_client import SourceError
from muster_tainter.sources.prometheus.client import PrometheusClient

_NODES = "/api/v1/nodes"
_LIST_S = 60.0


@dataclass(frozen=True)
class HistoryRequest:
    """prometheus: None: without one. matchers: of PromQL, for the series of Muster's agents. since_s: seconds before
    now. label_keys: labels of nodes that are kept. domain: label of failure domains; empty: none."""

    prometheus: HttpSource | None
    matchers: str
    since_s: float
    label_keys: frozenset[str]
    domain: str


@dataclass(frozen=True)
class FleetHistory:
    """begin, end: seconds since the epoch. faults: of the nodes in ``fleet``. unreadable: nodes whose record is.
    prometheus: None: it was not asked."""

    begin: float
    end: float
    fleet: FleetGroups
    faults: PastRows
    unreadable: int
    prometheus: PrometheusPast | None


async def read_history(
    client: KubeClient,
    request: HistoryRequest,
    *,
    now: Callable[[], float] = time.time,
    progress: Callable[[float], None] = lambda _: None,
) -> FleetHistory:
    """progress: called with the time up to which Prometheus is read. Raises ApiError, SourceError."""
    end = float(int(now()))
    faults = PastFaults(end - request.since_s, end)
    past = None
    if request.prometheus is None:
        faults.begin = max(faults.begin, end - CLOSED_FOR_S)
    else:
        async with PrometheusClient(request.prometheus) as source:
            past = await read_past(source, faults, request.matchers, progress)
        faults.begin = max(faults.begin, _first_reading(past, request.prometheus, faults.begin))
    nodes: list[PastNode] = []
    unreadable = 0
    async for nodes_page in client.list_pages(_NODES, PastNode, timeout_s=_LIST_S):
        for node in nodes_page.items:
            unreadable += not remember_node(node, faults)
            nodes.append(_without_annotations(node))
    watched: set[str] = set()
    async for healths_page in client.list_pages(HEALTHS, NodeHealth, timeout_s=_LIST_S):
        for health in healths_page.items:
            watched.add(health.metadata.name)
            remember_health(health, faults)
    rows = faults.rows()
    fleet = make_groups(
        nodes,
        watched,
        label_keys=request.label_keys,
        domain=request.domain,
        begin=faults.begin,
        faulty=Counter(row.node for row in rows.rows),
    )
    return FleetHistory(faults.begin, end, fleet, rows.of_nodes(fleet.names), unreadable, past)


def _first_reading(past: PrometheusPast, where: HttpSource, begin: float) -> float:
    """Raises SourceError if there is none."""
    firsts = [each.first for each in (past.agents, past.nodes) if each.first]
    if not firsts:
        raise SourceError(
            f"{where.url}: no series muster_agent_info and kube_node_status_condition since {rfc3339_whole(begin)}: "
            "expected the Prometheus that scrapes Muster's agents or kube-state-metrics"
        )
    return float(int(min(firsts)))


def _without_annotations(node: PastNode) -> PastNode:
    kept: Mapping[str, str] = node.metadata.labels
    metadata = Metadata(name=node.metadata.name, labels=dict(kept), creation_timestamp=node.metadata.creation_timestamp)
    return msgspec.structs.replace(node, metadata=metadata)
