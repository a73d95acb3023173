"""The devices of simulated nodes, as ResourceSlices would name them, for policies that keep single ones out of use.

Decisions, stages and budgets are the tainter's. Here every node has a driver of dynamic resource allocation, and a
DeviceTaintRule is there as soon as it is decided.
"""

import re
from collections.abc import Callable, Mapping

from muster_kube.api.objects import Metadata, Node
from muster_kube.api.times import rfc3339_whole
from muster_kube.nodehealth import NodeHealth
from muster_tainter.devices.budget import DeviceBudget
from muster_tainter.devices.taint_rule import COMPONENT, DeviceTaintRule
from muster_tainter.faults.decision_context import DeviceContext, KnownDevice
from muster_tainter.faults.device_isolation import device_key
from muster_tainter.faults.node_record import read_record
from muster_tainter.faults.node_report import read_report
from muster_tainter.policy.rules import Policy
from muster_tainter.simulation.known_devices import KnownDevices

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


class SimulatedDevices(KnownDevices):
    """Every address that faults name is a device of its node. healths: by name. counts: devices of each node."""

    def __init__(
        self,
        policy: Policy,
        nodes: Mapping[str, Node],
        healths: Mapping[str, NodeHealth],
        counts: Mapping[str, int],
        now: Callable[[], float],
    ) -> None:
        super().__init__((), policy, nodes, now)
        self._nodes, self._healths, self._counts = nodes, healths, counts
        self._budget = DeviceBudget(lambda: policy, nodes.get, lambda: list(nodes), counts.__getitem__, self._wake, now)

    def context(self, name: str) -> DeviceContext:
        device = KnownDevice(_DRIVER, self._counts[name], ruled=True)
        found = {component for _, component, _ in read_report(self._healths.get(name)).findings or {}}
        found |= {fault.component for fault in read_record(self._nodes[name]).open}
        return DeviceContext(known={device_key(each) or "": device for each in found if is_device(each)})


def simulated_rule(component: str, created: float) -> DeviceTaintRule:
    """The rule of a device that is kept out, as drains need it. created: seconds since the epoch."""
    return DeviceTaintRule(
        metadata=Metadata(
            name="simulated",
            annotations={COMPONENT: component},
            creation_timestamp=rfc3339_whole(created),
        )
    )
