"""What is to be drained: the interface of the evictor's input, and the drains of whole tainted nodes."""

from collections.abc import Callable, Mapping
from typing import Protocol

from muster_kube.api.client import KubeClient
from muster_kube.api.objects import Node
from muster_kube.controller.reflector import LIST_SILENCE_S
from muster_tainter.fleet.interface import Fleet
from muster_tainter.repair.drain_plan import DrainOrder, DrainPod, SortedPods, find_drain_order, sort_pods


class Drains(Protocol):
    """task: for the log; gauge: name and help of the metric of what is being drained; begun, blocked, done: reasons of
    the Events on the Node."""

    task: str
    gauge: tuple[str, str]
    begun: str
    blocked: str
    done: str

    def orders(self, node: Node) -> Mapping[str, DrainOrder]:
        """By component; the key of a drain of the whole node is empty."""
        ...

    async def pods(self, name: str, component: str, order: DrainOrder, *, fresh: bool = False) -> SortedPods:
        """The pods of the node that the order concerns, from the server's cache or (fresh) its current state. Raises
        ApiError."""
        ...


class NodeDrains:
    """now: seconds since the epoch."""

    task = "drains"
    gauge = ("muster_tainter_nodes_draining", "Tainted nodes that wait for pods to end")
    begun, blocked, done = "NodeDraining", "DrainBlocked", "NodeDrained"

    def __init__(self, client: KubeClient, fleet: Fleet, now: Callable[[], float]) -> None:
        self._client = client
        self._fleet = fleet
        self._now = now

    def orders(self, node: Node) -> Mapping[str, DrainOrder]:
        order = find_drain_order(node, self._fleet.policy(), self._now())
        return {} if order is None else {"": order}

    async def pods(self, name: str, _component: str, order: DrainOrder, *, fresh: bool = False) -> SortedPods:
        params: dict[str, str | int | bool] = {"fieldSelector": f"spec.nodeName={name}"}
        if not fresh:
            params["resourceVersion"] = "0"
        # without that, the API server reads the pods of the whole cluster from etcd
        timeout_s = LIST_SILENCE_S if fresh else None
        page = await self._client.list_page("/api/v1/pods", DrainPod, params=params, timeout_s=timeout_s)
        return sort_pods(page.items, order, self._now())
