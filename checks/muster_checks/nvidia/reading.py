"""One reading of all NVIDIA GPUs of a node, shared by the checks that want it at the same time."""

from muster_checks.declaration import NodeView
from muster_checks.nvidia.gpu import (
    Clocks,
    ClocksEvent,
    Ecc,
    EccCounts,
    Fabric,
    Gpu,
    Histogram,
    NvLink,
    Pcie,
    Power,
    Reading,
    Recovery,
    RemappedRows,
    RetiredPages,
    Temperature,
)
from muster_checks.running import CannotTell

__all__ = [
    "Clocks",
    "ClocksEvent",
    "Ecc",
    "EccCounts",
    "Fabric",
    "Gpu",
    "Histogram",
    "NvLink",
    "Pcie",
    "Power",
    "Reading",
    "Recovery",
    "RemappedRows",
    "RetiredPages",
    "Temperature",
    "read_gpus",
]

SHARED_S = 10.0  # checks of one pass run within it


async def read_gpus(node: NodeView, max_age_s: float = SHARED_S) -> Reading:
    """Every GPU that the driver knows.

    max_age_s: a reading that is not older is shared
    Raises NotHere (no NVIDIA GPU on the PCI bus), ToolMissing or CannotTell.
    """
    raise CannotTell(f"no source of GPU readings yet on {node.name or 'this node'} (at most {max_age_s:g} s old)")
