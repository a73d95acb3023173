"""The V-IPU controllers that there are: those of the list, in order, and those that entries still name."""

from collections.abc import Callable
from typing import TypeAlias

from muster_operator.proxy.controllers.list_syntax import Place, read_address
from muster_operator.proxy.controllers.measured_calls import Measured
from muster_operator.proxy.metrics import Metrics
from muster_operator.vipu.controller import Controller

Make: TypeAlias = Callable[[str, int], Controller]


class Reaching:
    """make: a back end for host (an IPv6 address without its brackets) and port."""

    def __init__(self, make: Make, metrics: Metrics) -> None:
        self._make = make
        self._metrics = metrics
        self._places: tuple[Place, ...] = ()
        self._controllers: dict[str, Measured] = {}

    def set(self, places: tuple[Place, ...], bad: int = 0) -> None:
        """The list is another one from now on. bad: entries of it that are skipped."""
        self._places = places
        self._metrics.controllers.labels("good").set(len(places))
        self._metrics.controllers.labels("bad").set(bad)

    @property
    def places(self) -> tuple[Place, ...]:
        return self._places

    def at(self, address: str) -> Measured | None:
        """Also one that left the list; None where that is no address."""
        place = read_address(address)
        return None if place is None else self.of(place)

    def of(self, place: Place) -> Measured:
        if place.address not in self._controllers:
            self._controllers[place.address] = Measured(self._make(place.host.strip("[]"), place.port), self._metrics)
        return self._controllers[place.address]
