"""The V-IPU controllers that there are: those of the list, in order, and those that entries still name."""

from collections.abc import Callable
from typing import TypeAlias

from muster_operator.proxy.controllers.list_syntax import ControllerEndpoint, parse_address
from muster_operator.proxy.controllers.measured_calls import MeasuredController
from muster_operator.proxy.metrics import ProxyMetrics
from muster_operator.vipu.controller import VipuController

ControllerFactory: TypeAlias = Callable[[str, int], VipuController]


class ControllerRegistry:
    """make: a back end for host (an IPv6 address without its brackets) and port."""

    def __init__(self, make: ControllerFactory, metrics: ProxyMetrics) -> None:
        self._make = make
        self._metrics = metrics
        self._places: tuple[ControllerEndpoint, ...] = ()
        self._controllers: dict[str, MeasuredController] = {}

    def set(self, places: tuple[ControllerEndpoint, ...], bad: int = 0) -> None:
        """The list is another one from now on. bad: entries of it that are skipped."""
        self._places = places
        self._metrics.controllers.labels("good").set(len(places))
        self._metrics.controllers.labels("bad").set(bad)

    @property
    def places(self) -> tuple[ControllerEndpoint, ...]:
        return self._places

    def at(self, address: str) -> MeasuredController | None:
        """Also one that left the list; None where that is no address."""
        place = parse_address(address)
        return None if place is None else self.of(place)

    def of(self, place: ControllerEndpoint) -> MeasuredController:
        if place.address not in self._controllers:
            self._controllers[place.address] = MeasuredController(
                self._make(place.host.strip("[]"), place.port), self._metrics
            )
        return self._controllers[place.address]
