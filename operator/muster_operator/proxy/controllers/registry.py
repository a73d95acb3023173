"""Known V-IPU controllers: those of the list, in order, and those that tracker entries still name."""

from collections.abc import Callable
from typing import TypeAlias

from muster_operator.proxy.controllers.list_syntax import ControllerEndpoint, parse_address
from muster_operator.proxy.controllers.measured_calls import MeasuredController
from muster_operator.proxy.metrics import ProxyMetrics
from muster_operator.vipu.controller import VipuController

ControllerFactory: TypeAlias = Callable[[str, int], VipuController]


class ControllerRegistry:
    """create: makes a back end from host (an IPv6 address without brackets) and port. endpoints: the list, in order."""

    def __init__(self, create: ControllerFactory, metrics: ProxyMetrics) -> None:
        self._create = create
        self._metrics = metrics
        self.endpoints: tuple[ControllerEndpoint, ...] = ()
        self._controllers: dict[str, MeasuredController] = {}

    def replace_list(self, endpoints: tuple[ControllerEndpoint, ...], bad: int = 0) -> None:
        """Replace the list. bad: number of its entries that were skipped."""
        self.endpoints = endpoints
        self._metrics.controllers.labels("good").set(len(endpoints))
        self._metrics.controllers.labels("bad").set(bad)

    def find(self, address: str) -> MeasuredController | None:
        """Also finds a controller that is no longer in the list; None if the address is invalid."""
        endpoint = parse_address(address)
        return None if endpoint is None else self.get(endpoint)

    def get(self, endpoint: ControllerEndpoint) -> MeasuredController:
        controller = self._controllers.get(endpoint.address)
        if controller is None:
            created = self._create(endpoint.host.strip("[]"), endpoint.port)
            controller = self._controllers[endpoint.address] = MeasuredController(created, self._metrics)
        return controller
