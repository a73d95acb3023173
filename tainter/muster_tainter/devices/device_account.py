"""Device-seconds by driver: out of use alone, out of use with their nodes, and spared. Kept by the leader.

They are integrated over time, so that restarts, budgets and faults that overlap are counted as they were. A new leader
counts from its own start.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping

from muster_tainter.devices.device_states import tainted_cards
from muster_tainter.devices.losses import DeviceBalance, device_balance
from muster_tainter.devices.slices.device_map import NodeDevices
from muster_tainter.faults.record.node_record import ANNOTATION
from muster_tainter.fleet.interface import Fleet

PERIOD_S = 10.0
DRIVERS_LIMIT = 32  # different labels; whoever writes ResourceSlices chooses the names
OTHERS = "other"


class DeviceAccount:
    """clock: monotonic seconds; add: called with driver, outcome and device-seconds."""

    def __init__(self, clock: Callable[[], float], add: Callable[[str, str, float], None]) -> None:
        self._clock = clock
        self._add = add
        self._last = clock()
        self._drivers: set[str] = set()

    def begin(self) -> None:
        """What was before is not this leader's."""
        self._last = self._clock()

    async def run(self, fleet: Fleet, devices_of: Callable[[str], NodeDevices]) -> None:
        """While leading, until cancelled."""
        self.begin()
        while True:
            await asyncio.sleep(PERIOD_S)
            recorded = [node for node in fleet.nodes.values() if ANNOTATION in node.metadata.annotations]
            self.tick(device_balance(node, devices_of(node.metadata.name)) for node in recorded)

    def tainted(self, nodes: Iterable[NodeDevices]) -> Iterator[tuple[str, str]]:
        """(driver, strongest effect) of each device that its driver has tainted."""
        for devices in nodes:
            if devices.any_tainted:
                for driver, effect in tainted_cards(devices):
                    yield self.label(driver), effect

    def tick(self, balances: Iterable[Mapping[str, DeviceBalance]]) -> None:
        """The time since the last tick counts as if it had all been like now. balances: of nodes, by driver."""
        now = self._clock()
        passed_s, self._last = max(0.0, now - self._last), now
        for of_node in balances:
            for driver, balance in of_node.items():
                label = self.label(driver)
                self._add(label, "alone", balance.alone * passed_s)
                self._add(label, "with_node", balance.with_node * passed_s)
                self._add(label, "spared", balance.spared * passed_s)

    def label(self, driver: str) -> str:
        """The driver's name, for as many as have room."""
        if driver not in self._drivers and len(self._drivers) >= DRIVERS_LIMIT:
            return OTHERS
        self._drivers.add(driver)
        return driver
