"""What NVIDIA's kernel driver writes about each GPU bound to it: /proc/driver/nvidia/gpus/ADDRESS/information."""

import re

from muster_checks.base.bounded_read import names_in, read_text
from muster_checks.base.declaration import NodeView
from muster_checks.hardware.pci import normal_address

_FOLDER = "/proc/driver/nvidia/gpus"
_MINOR = re.compile(r"^Device Minor:\s*([0-9]{1,4})\s*$", re.M)


def read_driver_files(node: NodeView) -> dict[str, str]:
    """The text of each GPU's file, by PCI address."""
    return {
        normal_address(name): read_text(node.path(f"{_FOLDER}/{name}/information"), 4096) or ""
        for name in names_in(node.path(_FOLDER))
    }


def device_minor(text: str) -> int | None:
    """N of /dev/nvidiaN, from such a file."""
    found = _MINOR.search(text)
    return int(found[1]) if found else None
