"""The HTTPS interface of the extender for kube-scheduler (k8s.io/kube-scheduler/extender/v1). Every replica serves it.

Anyone who reaches the port may ask: answers contain the numbers of IPUs, and which of the asked names are nodes.
Nothing is written. Requests hold node names only (``nodeCacheCapable: true``): whole Nodes would be 100 MB in a large
cluster.
"""

from typing import Annotated

from fastapi.responses import Response
from pydantic import AliasChoices, BaseModel, ConfigDict, Field

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
from muster_operator.visibility.ipu_capacity import IpuCapacity

BODY_LIMIT = 8 << 20  # bytes: 15,000 names of 253 characters, and a pod (1.5 MiB in etcd)
BODY_S = 10.0
NODES_LIMIT = 15_000  # three times what Kubernetes supports in one cluster
_NAMES_SHOWN = 5

NodeName = Annotated[str, Field(min_length=1, max_length=253)]


class _PodMetadata(BaseModel):
    model_config = ConfigDict(frozen=True)
    uid: str = Field(default="", max_length=253)
    annotations: dict[str, str] | None = None


class _Pod(BaseModel):
    model_config = ConfigDict(frozen=True)
    metadata: _PodMetadata


class ExtenderArgs(BaseModel):
    """The request of both verbs; other fields are ignored. Schedulers before 1.18 write the names in lower case."""

    model_config = ConfigDict(frozen=True)
    pod: _Pod = Field(validation_alias=AliasChoices("Pod", "pod"))
    node_names: list[NodeName] = Field(
        max_length=NODES_LIMIT,
        validation_alias=AliasChoices("NodeNames", "nodenames"),
        description="candidates; kube-scheduler sends them with nodeCacheCapable: true",
    )


def extender_app(cluster: ClusterCache, capacity: IpuCapacity, max_ipus: int) -> Service:
    service = Service(
        "muster scheduler extender",
        package_version(),
        description="For kube-scheduler: places pods with the annotation graphcore.ai/ipus where IPUs are free.",
        structs=(FilterResult, HostPriority),
        body_limit=BODY_LIMIT,
        body_s=BODY_S,
    )

    def read_state(args: ExtenderArgs) -> IpuState:
        nodes = cluster.nodes.store
        labels = {name: nodes[name].metadata.labels for name in args.node_names if name in nodes}
        return IpuState(capacity.read(), capacity.error, labels)

    def read_pod(args: ExtenderArgs) -> tuple[IpuRequest | None, list[PartitionEntry]]:
        metadata = args.pod.metadata
        return read_request(metadata.annotations or {}, max_ipus), list(cluster.tracker.of_job(metadata.uid).values())

    @service.post(
        "/filter",
        responses={
            200: described("suitable nodes, and why others are not", {"application/json": struct(FilterResult)})
        },
    )
    async def filter_candidates(args: ExtenderArgs) -> Response:
        """The nodes on which the pod can get its IPUs."""
        request, entries = read_pod(args)
        if request is None and not entries:
            return StructResponse(FilterResult(args.node_names, {}))
        return StructResponse(filter_nodes(args.node_names, request, entries, read_state(args)))

    @service.post(
        "/prioritize",
        responses={
            200: described(
                "a score from 0 to 10 for each node",
                {"application/json": {"schema": {"type": "array", "items": struct(HostPriority)["schema"]}}},
            )
        },
    )
    async def prioritize(args: ExtenderArgs) -> Response:
        """Prefers the nodes of the first V-IPU controller with room, which gets the partition."""
        request, entries = read_pod(args)
        if request is None:
            return StructResponse([HostPriority(name, 0) for name in args.node_names])
        state = read_state(args)
        if unknown := [name for name in args.node_names if name not in state.labels]:
            more = f" and {len(unknown) - _NAMES_SHOWN} more" if len(unknown) > _NAMES_SHOWN else ""
            shown = ", ".join(name[:80] for name in unknown[:_NAMES_SHOWN])
            raise BadRequest(f"NodeNames: unknown nodes: {shown}{more}; expected names of nodes of this cluster")
        return StructResponse(score_nodes(args.node_names, request, entries, state))

    return service
