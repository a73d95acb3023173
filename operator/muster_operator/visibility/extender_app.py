"""The HTTPS interface of the extender for kube-scheduler (k8s.io/kube-scheduler/extender/v1). Every replica serves it.

Anyone who reaches the port may ask: answers contain the numbers of IPUs, and which of the asked names are nodes.
Nothing is written. Requests hold node names only (``nodeCacheCapable: true``): whole Nodes would be 100 MB in a large
cluster.
"""

from typing import Any

from fastapi import Request
from fastapi.responses import Response

from muster_kube.http.bad_request import BadRequest
from muster_kube.http.responses import StructResponse, described, struct
from muster_kube.http.service import Service
from muster_kube.process.lifetime import package_version
from muster_operator.job.partition_api import PartitionEntry
from muster_operator.observe.cluster import ClusterCache
from muster_operator.visibility.extender import (
    FilterResult,
    HostPriority,
    IpuRequest,
    IpuState,
    filter_nodes,
    read_request,
    score_nodes,
)
from muster_operator.visibility.extender_args import BODY_LIMIT, ArgsReader, ExtenderArgs, annotation_of
from muster_operator.visibility.ipu_capacity import IpuCapacity

BODY_S = 10.0
_NAMES_SHOWN = 5
_REFUSED: dict[int | str, dict[str, Any]] = {
    400: described("what is wrong with the request, and what is expected"),
    503: described("concurrent requests already have all the bytes that they may have"),
}
_BODY = {"requestBody": {"required": True, "content": {"application/json": struct(ExtenderArgs)}}}


def extender_app(cluster: ClusterCache, capacity: IpuCapacity, max_ipus: int) -> Service:
    service = Service(
        "muster scheduler extender",
        package_version(),
        description="For kube-scheduler: places pods with the annotation graphcore.ai/ipus where IPUs are free.",
        structs=(ExtenderArgs, FilterResult, HostPriority),
        body_limit=BODY_LIMIT,
        body_s=BODY_S,
    )
    reader = ArgsReader()

    def read_state(args: ExtenderArgs) -> IpuState:
        nodes = cluster.nodes.store
        labels = {name: nodes[name].metadata.labels for name in args.node_names if name in nodes}
        return IpuState(capacity.read(), capacity.error, labels)

    def read_pod(args: ExtenderArgs) -> tuple[IpuRequest | None, list[PartitionEntry]]:
        entries = cluster.tracker.of_job(args.pod.metadata.uid)
        return read_request(annotation_of(args.pod), max_ipus), list(entries.values())

    @service.post(
        "/filter",
        openapi_extra=_BODY,
        responses={
            200: described("suitable nodes, and why others are not", {"application/json": struct(FilterResult)}),
            **_REFUSED,
        },
    )
    async def filter_candidates(request: Request) -> Response:
        """The nodes on which the pod can get its IPUs."""
        args = await reader.read(request)
        wanted, entries = read_pod(args)
        if wanted is None and not entries:
            return StructResponse(FilterResult(args.node_names, {}))
        return StructResponse(filter_nodes(args.node_names, wanted, entries, read_state(args)))

    @service.post(
        "/prioritize",
        openapi_extra=_BODY,
        responses={
            200: described(
                "a score from 0 to 10 for each node",
                {"application/json": {"schema": {"type": "array", "items": struct(HostPriority)["schema"]}}},
            ),
            **_REFUSED,
        },
    )
    async def prioritize(request: Request) -> Response:
        """Prefers the nodes of the first V-IPU controller with room, which gets the partition."""
        args = await reader.read(request)
        wanted, entries = read_pod(args)
        if wanted is None:
            return StructResponse([HostPriority(name, 0) for name in args.node_names])
        state = read_state(args)
        if unknown := [name for name in args.node_names if name not in state.labels]:
            more = f" and {len(unknown) - _NAMES_SHOWN} more" if len(unknown) > _NAMES_SHOWN else ""
            shown = ", ".join(name[:80] for name in unknown[:_NAMES_SHOWN])
            raise BadRequest(f"NodeNames: unknown nodes: {shown}{more}; expected names of nodes of this cluster")
        return StructResponse(score_nodes(args.node_names, wanted, entries, state))

    return service
