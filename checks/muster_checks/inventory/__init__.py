"""The check ``inventory``: the devices that should be there are there, and none has gone since it was last seen."""

from collections.abc import Sequence
from pathlib import Path

from pydantic import Field

from muster_checks.declaration import Check, Cost, NodeView, Parameters
from muster_checks.vocabulary import Finding


class InventoryParameters(Parameters):
    expected: Path | None = Field(
        default=None, description="YAML list of {kind: pci | block | net | infiniband, match: GLOB, count: N}"
    )
    # a device that is being reset leaves the bus for some seconds; a public system confirms by three polls
    confirmations: int = Field(default=3, ge=1, le=100, description="runs in a row that must miss a device")


async def _probe(node: NodeView, parameters: InventoryParameters) -> Sequence[Finding]:
    from muster_checks.inventory.devices import probe

    return await probe(node, parameters)


INVENTORY = Check(
    name="inventory",
    description="PCI accelerators, NICs, disks and InfiniBand devices: none missing, none gone since it was seen",
    cost=Cost.LIGHT,
    parameters=InventoryParameters,
    timeout_s=10.0,
    devices=("gpu", "ipu", "nic", "disk", "nvswitch"),
    period_s=60.0,
    probe=_probe,
    reads="/sys/bus/pci/devices, /sys/block, /sys/class/net, /sys/class/infiniband",
    ran_on="real hardware: a virtual machine's devices; accelerators on hand-made /sys trees",
    examples=("check=inventory",),
)
