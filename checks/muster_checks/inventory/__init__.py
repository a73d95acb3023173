"""The check ``inventory``: whether the devices that an operator expects are present.

The checks pcielink and gpucount report devices that disappear.
"""

from collections.abc import Sequence
from pathlib import Path

from pydantic import Field

from muster_checks.base.declaration import Check, Cost, NodeView, Parameters
from muster_checks.base.vocabulary import Finding


class InventoryParameters(Parameters):
    expected: Path | None = Field(
        default=None, description="YAML list of {kind: pci | block | net | infiniband, match: GLOB, count: N}"
    )


async def _probe(node: NodeView, parameters: InventoryParameters) -> Sequence[Finding]:
    from muster_checks.inventory.probe import probe

    return await probe(node, parameters)


INVENTORY = Check(
    name="inventory",
    description="PCI devices, disks, network and InfiniBand devices: whether there are as many as the operator expects",
    cost=Cost.LIGHT,
    parameters=InventoryParameters,
    timeout_s=10.0,
    devices=("pci", "disk", "nic"),
    period_s=60.0,
    probe=_probe,
    reads="/sys/bus/pci/devices, /sys/block, /sys/class/net, /sys/class/infiniband",
    ran_on="real hardware: a virtual machine's devices; others on hand-made /sys trees",
    examples=("check=inventory&expected=/etc/muster/devices.yaml",),
)
