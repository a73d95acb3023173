"""Devices for `muster simulate`: as many on each node as the fleet file says, with names as in ResourceSlices.

Decisions, stages and budgets are the tainter's. Every node has a driver of dynamic resource allocation, and a
DeviceTaintRule is there as soon as it is decided.
"""

import re
from collections.abc import Callable, Iterable, Mapping

from muster_kube.api.objects import Metadata, Node
from muster_kube.api.times import rfc3339_whole
from muster_tainter.devices.rules.taint_rule import COMPONENT, DeviceTaintRule
from muster_tainter.faults.decision_context import DeviceContext, KnownDevice
from muster_tainter.faults.device_isolation import device_key
from muster_tainter.policy.rules import Policy
from muster_tainter.simulation.devices.places import DevicePlaces

_ACCELERATOR = "gpu/"
_NUMBERED = re.compile(r"gpu/(\d{1,4})")
_DRIVER = "simulated"


def device_component(component: str, devices: int) -> str:
    """``gpu/3``, as a fault file may number the devices of a node, by the address that agents report:
    ``gpu/0000:03:00.0``. Every other component is as it was."""
    match = _NUMBERED.fullmatch(component)
    if match is None or int(match[1]) >= devices:
        return component
    domain, bus = divmod(int(match[1]), 256)
    return f"{_ACCELERATOR}{domain:04x}:{bus:02x}:00.0"


def is_device(component: str) -> bool:
    """Whether it is one accelerator of its node."""
    return component.startswith(_ACCELERATOR) and device_key(component) is not None


class CountedDevices(DevicePlaces):
    """nodes: all, as after the last write. counts: their devices. now: seconds since the epoch."""

    def __init__(
        self, policy: Policy, nodes: Mapping[str, Node], counts: Mapping[str, int], now: Callable[[], float]
    ) -> None:
        super().__init__(policy, nodes, lambda: list(nodes), lambda name: counts[name], now)
        self._counts = counts

    def context(self, node: Node, components: Iterable[str]) -> DeviceContext:
        """components: those of which something is reported or recorded."""
        device = KnownDevice(_DRIVER, self._counts[node.metadata.name], ruled=True)
        return DeviceContext(known={device_key(each) or "": device for each in components if is_device(each)})


def simulated_rule(component: str, created: float) -> DeviceTaintRule:
    """The rule of a device that is kept out, as drains need it. created: seconds since the epoch."""
    return DeviceTaintRule(
        metadata=Metadata(
            name="simulated",
            annotations={COMPONENT: component},
            creation_timestamp=rfc3339_whole(created),
        )
    )
