"""NICs that faults name by their RDMA device (``nic/mlx5_0``) or interface, and slices by their PCI address. Pure.

The agent reports the address with the finding, and the fault keeps it. An agent can report for its own node only, so a
false address names at most another device of that node, about which it could report a fault anyway.
"""

from collections.abc import Mapping
from dataclasses import replace

from muster_kube.nodehealth import NodeHealth
from muster_tainter.devices.slices.device_map import NodeDevices
from muster_tainter.faults.device_isolation import device_identity, device_key
from muster_tainter.faults.record.node_record import NodeRecord

NAMES_LIMIT = 64  # of a node


def nic_names(memory: NodeRecord, health: NodeHealth | None) -> dict[str, str]:
    """The addresses of NICs by the names that faults and findings have for them. The agent's last word counts."""
    checks = health.status.checks if health is not None else ()
    reported = [(each.component, each.address) for check in checks for each in check.findings if each.address]
    found: dict[str, str] = {}
    for component, said in (*reported, *((fault.component, fault.address) for fault in memory.open)):
        if said and component.startswith("nic/") and len(found) < NAMES_LIMIT:
            name, address = device_key(component), device_identity(said)
            if name and address and name != address:
                found.setdefault(name, address)
    return found


def with_nic_names(devices: NodeDevices, names: Mapping[str, str]) -> NodeDevices:
    """The same devices, which are also found by these names."""
    more = {name: devices.cards[address] for name, address in names.items() if address in devices.cards}
    return replace(devices, cards={**devices.cards, **more}) if more else devices
