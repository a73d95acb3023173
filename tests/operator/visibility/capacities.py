"""What the proxy says of its controllers."""

from collections.abc import Callable

from muster_kube.api.objects import Metadata
from muster_operator.job.partition_api import ControllerCapacity, IpuCount, PartitionRefusal
from muster_operator.observe.node_capacity import IPUS_FREE, IPUS_TOTAL, FleetNode, FleetNodeStatus, project_node
from muster_operator.visibility.ipu_capacity import IpuCapacity

AWAY = PartitionRefusal(why="Unreachable", message="nothing listens")


def controller(name: str, free: int | None, *, total: int = 16, largest: int | None = None) -> ControllerCapacity:
    """It serves nodes with the label ipunode=NAME. free: None if it does not answer."""
    if free is None:
        return ControllerCapacity(f"{name}:8090", f"ipunode={name}", message="down")
    return ControllerCapacity(
        f"{name}:8090", f"ipunode={name}", IpuCount(total, free, free if largest is None else largest)
    )


def node(name: str, serving: str = "", *, free: str = "", total: str = "", **labels: str) -> FleetNode:
    """free, total: as resources."""
    resources = {IPUS_FREE: free, IPUS_TOTAL: total}
    found = {"ipunode": serving} if serving else {}
    return project_node(
        FleetNode(
            metadata=Metadata(
                name=name, labels=found | {key.replace("_", "/"): value for key, value in labels.items()}
            ),
            status=FleetNodeStatus(capacity={"cpu": "8"} | {key: value for key, value in resources.items() if value}),
        )
    )


class Proxy:
    """answer: of the next calls."""

    def __init__(self, *answer: ControllerCapacity) -> None:
        self.answer: list[ControllerCapacity] | PartitionRefusal = list(answer)
        self.now = 0.0

    async def controllers(self) -> list[ControllerCapacity] | PartitionRefusal:
        return self.answer

    @property
    def clock(self) -> Callable[[], float]:
        return lambda: self.now


def capacity_of(proxy: Proxy) -> IpuCapacity:
    return IpuCapacity(proxy, clock=proxy.clock)
