"""The drains of single devices: an input of the evictor, which evicts the pods that hold a quarantined device and knows
when none is left."""

from collections.abc import Callable, Mapping

from muster_kube.api.objects import Node
from muster_kube.nodehealth import device_digest
from muster_tainter.devices.holders.drain_plan import find_device_orders, sort_holders
from muster_tainter.devices.holders.reader import HolderReader
from muster_tainter.devices.rules.store import RuleStore
from muster_tainter.devices.slices.device_map import PARTS_LIMIT
from muster_tainter.fleet.interface import Fleet
from muster_tainter.repair.drain_plan import DrainOrder, SortedPods

NAMES_LIMIT = PARTS_LIMIT  # 32 digests of 7 digits are a parameter of 255 characters, of 256


class DeviceDrains:
    """An order for every device that is kept out of use alone, also if nobody is to be evicted: a proof waits until no
    pod holds the device. now: seconds since the epoch."""

    task = "device drains"
    gauge = ("muster_tainter_devices_draining", "Quarantined devices that wait for pods that hold them to end")
    begun, blocked, done = "DeviceDraining", "DeviceDrainBlocked", "DeviceDrained"

    def __init__(self, reader: HolderReader, fleet: Fleet, store: RuleStore, now: Callable[[], float]) -> None:
        self._reader = reader
        self._fleet = fleet
        self._store = store
        self._now = now

    def orders(self, node: Node) -> Mapping[str, DrainOrder]:
        rules = self._store.of(node.metadata.name).values()
        return find_device_orders(node, rules, self._fleet.policy()) if rules else {}

    async def pods(self, name: str, component: str, order: DrainOrder, *, fresh: bool = False) -> SortedPods:
        devices = self._store.devices(name, component)
        return sort_holders(await self._reader.holders(name, devices, fresh=fresh), order, self._now())

    def digests(self, name: str) -> dict[str, tuple[str, ...]]:
        """By component: the devices of the node that have rules, as a request for a check names them. Devices with
        more parts than one request can name are left out."""
        found = {}
        for component in {rule.component for rule in self._store.of(name).values()}:
            names = self._store.devices(name, component)
            if len(names) <= NAMES_LIMIT:
                found[component] = tuple(sorted(device_digest(*each) for each in names))
        return found
