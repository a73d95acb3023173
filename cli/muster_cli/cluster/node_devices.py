"""The devices of nodes, from ResourceSlices, read with the rights of the user."""

import time
from collections.abc import Callable, Mapping

from muster_kube.api.client import KubeClient
from muster_kube.api.errors import ApiError, Forbidden
from muster_tainter.devices.api_versions import NotServed, find_slices
from muster_tainter.devices.slices.device_map import NO_DEVICES, NodeDevices, map_devices
from muster_tainter.devices.slices.index import SliceIndex
from muster_tainter.devices.slices.resource_slice import ResourceSlice, slim_slice

SLICES_LIMIT = 2000  # of a fleet: some 20 MB of JSON for nodes with eight GPUs
AGAIN_S = 60.0  # between two reads for a table that is repeated every 2 s
_LIST_S = 10.0
_RIGHT = "needs the right to list resourceslices.resource.k8s.io"


async def read_node_devices(client: KubeClient, name: str) -> tuple[NodeDevices, str]:
    """(the devices of a node; why they cannot be read, empty also if the cluster has no ResourceSlices).

    Slices of other nodes are not read, so a pool that two nodes name is not noticed here.
    """
    try:
        path = await find_slices(client)
        found: list[ResourceSlice] = []
        params = {"fieldSelector": f"spec.nodeName={name}"}
        async for page in client.list_pages(
            path, ResourceSlice, params=params, transform=slim_slice, timeout_s=_LIST_S
        ):
            found += [each for each in page.items if each.spec.node_name == name]
    except NotServed:
        return NO_DEVICES, ""
    except Forbidden:
        return NO_DEVICES, f"devices are not shown: {_RIGHT}"
    except ApiError as error:
        return NO_DEVICES, f"devices are not shown: cannot read the node's ResourceSlices: {error}"
    return map_devices(found, {}), ""


class FleetDevices:
    """The devices of all nodes. clock: monotonic seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._read_at = float("-inf")
        self.by_node: Mapping[str, NodeDevices] = {}
        self.missing = ""
        """Why they are not shown; empty if they are, or if the cluster has no ResourceSlices."""

    async def read(self, client: KubeClient, names: set[str]) -> None:
        """At most once in :data:`AGAIN_S`. names: of the cluster's Nodes."""
        if self._clock() - self._read_at < AGAIN_S:
            return
        self._read_at = self._clock()
        self.by_node, self.missing = {}, ""
        index = SliceIndex(names.__contains__, limit=SLICES_LIMIT)
        try:
            path = await find_slices(client)
            async for page in client.list_pages(path, ResourceSlice, transform=slim_slice, timeout_s=_LIST_S):
                for each in page.items:
                    index.note(each.metadata.name, None, each)
                if index.left_out:
                    self.missing = f"taints of drivers are not shown: there are more than {SLICES_LIMIT} ResourceSlices"
                    return
        except NotServed:
            return
        except Forbidden:
            self.missing = f"taints of drivers are not shown: {_RIGHT}"
            return
        except ApiError as error:
            self.missing = f"taints of drivers are not shown: cannot read the ResourceSlices: {error}"
            return
        self.by_node = {name: index.devices(name) for name in index.nodes() if name in names}
