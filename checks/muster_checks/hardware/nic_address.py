"""The PCI address of a network device that findings name by its RDMA device or interface.

Sources: ``/sys/class/infiniband/<name>/device`` and ``/sys/class/net/<name>/device``, links to the PCI function
(Documentation/ABI/stable/sysfs-class-infiniband and testing/sysfs-class-net of the kernel).
"""

import re
from contextlib import suppress

from muster_checks.base.declaration import NodeView
from muster_checks.hardware.pci import normal_address

_NAMED = re.compile(r"nic/([a-z][a-z0-9_]{1,30})")
_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_CLASSES = ("infiniband", "net")


def nic_address(node: NodeView, component: str) -> str:
    """``0000:3b:00.0`` for ``nic/mlx5_0``; empty for other components, for devices without an address, and for bonds,
    which are more than one function."""
    match = _NAMED.fullmatch(component)
    if match is None or "bond" in match[1]:
        return ""
    for kind in _CLASSES:
        with suppress(OSError):
            link = node.path(f"/sys/class/{kind}/{match[1]}/device").readlink()
            address = normal_address(link.name)
            if _ADDRESS.fullmatch(address):
                return address
    return ""
