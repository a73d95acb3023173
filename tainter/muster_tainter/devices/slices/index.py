"""The ResourceSlices of a cluster, by node; what changed, and what each node's devices are."""

from collections.abc import Callable

from muster_kube.api.objects import Metadata
from muster_tainter.devices.slices.device_map import NO_DEVICES, NodeDevices, map_devices
from muster_tainter.devices.slices.nic_names import with_nic_names
from muster_tainter.devices.slices.resource_slice import ResourceSlice, SliceSpec

# two drivers (GPUs, NICs) on each of 15,000 nodes, and a slice for each GPU of some of them; about 80 MB
SLICES_LIMIT = 40_000
# Of one node, because its kubelet may write any number of slices of it. Enough for several drivers with a slice for
# each device, and for 8 NICs with 127 virtual functions or 16 GPUs with 64 parts.
NODE_SLICES_LIMIT = 64
NODE_DEVICES_LIMIT = 1024  # with a PCI address or UUID; no fault names others

_Pool = tuple[str, str]  # driver, name


class SliceIndex:
    """is_node: whether a Node of that name exists. limit: slices of all nodes beyond it are not kept.

    A node with more slices or devices than are kept of one has none, until there are fewer.
    """

    def __init__(self, is_node: Callable[[str], bool], limit: int = SLICES_LIMIT) -> None:
        self._is_node = is_node
        self._limit = limit
        self._by_node: dict[str, dict[str, ResourceSlice]] = {}
        self._owners: dict[_Pool, dict[str, int]] = {}  # number of slices of each node
        self._mapped: dict[str, NodeDevices] = {}
        self._nic_names: dict[str, dict[str, str]] = {}  # of nodes with faults of NICs
        self.count = 0
        self.left_out: set[str] = set()  # by the limit of all nodes
        self._excess: dict[str, set[str]] = {}  # by node: left out by the limits of one

    def has_room(self, key: str, found: ResourceSlice) -> bool:
        """Whether the slice is kept, beside the others that are there."""
        known = key in self._by_node.get(found.spec.node_name, ())
        return self.count - known < self._limit and not self._is_excess(key, found)

    def excess(self, node: str) -> str:
        """Why the node has no devices, although there are slices of it; empty if it has them."""
        limits = f"{NODE_SLICES_LIMIT} ResourceSlices or {NODE_DEVICES_LIMIT} devices"
        return f"node {node} has more than {limits}" if node in self._excess else ""

    def note(self, key: str, old: ResourceSlice | None, new: ResourceSlice | None) -> set[str]:
        """Record a change of the slice ``key``. Returns the nodes whose devices may have changed."""
        changed: set[str] = set()
        kept = new is not None and self.has_room(key, new)
        if old is not None:
            if key in self._by_node.get(old.spec.node_name, ()):
                changed |= self._remove(key, old)
            changed |= self._drop_excess(key, old.spec.node_name)
        self.left_out.discard(key)
        if new is not None and new.spec.node_name:
            if kept:
                changed |= self._add(key, new)
            elif self._is_excess(key, new):
                changed |= self._add_excess(key, new.spec.node_name)
            else:
                self.left_out.add(key)
        for node in changed:
            self._mapped.pop(node, None)
        return changed

    def devices(self, node: str) -> NodeDevices:
        """The devices of a node."""
        known = self._mapped.get(node)
        if known is None:
            slices = self._by_node.get(node)
            if slices is None or node in self._excess:
                return NO_DEVICES
            foreign: dict[_Pool, str] = {}
            for each in slices.values():
                pool = each.spec.driver, each.spec.pool.name
                why = self._foreign(node, pool)
                if why:
                    foreign[pool] = why
            mapped = map_devices(slices.values(), foreign)
            known = self._mapped[node] = with_nic_names(mapped, self._nic_names.get(node, {}))
        return known

    def name_nics(self, node: str, names: dict[str, str]) -> None:
        """Record the names of the node's NICs that faults have, as devices.nic_names returns them."""
        if self._nic_names.get(node, {}) != names:
            self._mapped.pop(node, None)
            if names:
                self._nic_names[node] = names
            else:
                del self._nic_names[node]

    def nodes_changed(self) -> None:
        """A node came or went, and a pool may have its name."""
        self._mapped.clear()

    def nodes(self) -> list[str]:
        return list(self._by_node)

    def _foreign(self, node: str, pool: _Pool) -> str:
        name = pool[1]
        if name == node:
            return ""
        if self._is_node(name):
            return f"its pool has the name of another node, {name}"
        others = sorted(each for each in self._owners.get(pool, ()) if each != node)
        return f"node {others[0]} names the same pool, {name}" if others else ""

    def _is_excess(self, key: str, found: ResourceSlice) -> bool:
        others = [each for other, each in self._by_node.get(found.spec.node_name, {}).items() if other != key]
        devices = sum(each.spec.identified for each in (*others, found))
        return len(others) >= NODE_SLICES_LIMIT or devices > NODE_DEVICES_LIMIT

    def _add_excess(self, key: str, node: str) -> set[str]:
        keys = self._excess.setdefault(node, set())
        keys.add(key)
        return {node} if len(keys) == 1 else set()

    def _drop_excess(self, key: str, node: str) -> set[str]:
        keys = self._excess.get(node, set())
        if key not in keys:
            return set()
        keys.remove(key)
        if keys:
            return set()
        del self._excess[node]
        return {node}

    def _add(self, key: str, found: ResourceSlice) -> set[str]:
        node, pool = found.spec.node_name, (found.spec.driver, found.spec.pool.name)
        self.count += 1
        self._by_node.setdefault(node, {})[key] = found
        owners = self._owners.setdefault(pool, {})
        owners[node] = owners.get(node, 0) + 1
        return set(owners)

    def _remove(self, key: str, found: ResourceSlice) -> set[str]:
        node, pool = found.spec.node_name, (found.spec.driver, found.spec.pool.name)
        self.count -= 1
        slices = self._by_node[node]
        del slices[key]
        if not slices:
            del self._by_node[node]
        owners = self._owners[pool]
        changed = set(owners)
        owners[node] -= 1
        if not owners[node]:
            del owners[node]
        if not owners:
            del self._owners[pool]
        return changed


class SliceStore(dict[str, ResourceSlice]):
    """The reflector's store. Of a slice that the index leaves out, only the name and the node are kept."""

    def __init__(self, index: SliceIndex) -> None:
        super().__init__()
        self._index = index

    def __setitem__(self, key: str, found: ResourceSlice) -> None:
        super().__setitem__(key, found if self._index.has_room(key, found) else _without_devices(found))


def _without_devices(found: ResourceSlice) -> ResourceSlice:
    metadata = Metadata(name=found.metadata.name, resource_version=found.metadata.resource_version)
    return ResourceSlice(metadata=metadata, spec=SliceSpec(node_name=found.spec.node_name))
