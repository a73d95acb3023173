"""ResourceSlices: which devices a driver of a node publishes. Only what names a device, and its taints, are kept.

Attributes: ``resource.kubernetes.io/pciBusID`` is the standard one (k8s.io/dynamic-resource-allocation);
``uuid`` and, of a MIG device, ``parentUUID`` are those of NVIDIA's driver; ``pciAddress`` is the one of DRANET
(``dra.net/pciAddress``, pkg/apis/attributes.go). A name without a domain is in the driver's.

A driver may taint its own devices here (``taints``, KEP-5055). Muster shows such a taint and never removes it.
"""

import sys
from collections.abc import Iterable

import msgspec

from muster_checks.base.vocabulary import shorten
from muster_kube.api.objects import Api, Metadata
from muster_tainter.faults.device_isolation import device_identity

ADDRESS = "resource.kubernetes.io/pciBusID"
DRIVERS_ADDRESS = "pciAddress"
UUID, PARENT = "uuid", "parentUUID"
TAINTS_LIMIT = 8  # of a device, the strongest; a driver may set 16 (DeviceTaintsMaxLength, k8s.io/api/resource/v1)
_TEXT_LIMIT = 128  # bytes of a taint's key and of its value
_WORD_LIMIT = 40  # bytes of its effect and of its time
_EFFECTS = ("NoSchedule", "NoExecute")  # all others only inform: "must treat unknown effects like None"


def address_attributes(driver: str) -> frozenset[str]:
    """The attributes in which a driver may publish a PCI address."""
    return frozenset(key for name in (ADDRESS, DRIVERS_ADDRESS) for key in _qualified(name, driver))


def _qualified(name: str, driver: str) -> tuple[str, ...]:
    return (name,) if "/" in name else (name, f"{driver}/{name}")


class DeviceAttribute(Api, frozen=True):
    """Of its possible types, only text."""

    string: str = ""


class DriverTaint(Api, frozen=True):
    """A taint that the driver has set on its own device. time_added: RFC 3339, or empty."""

    key: str = ""
    value: str = ""
    effect: str = ""
    time_added: str = ""

    @property
    def keeps_out(self) -> bool:
        """The scheduler gives the device to no pod that does not tolerate the taint."""
        return self.effect in _EFFECTS


class BasicDevice(Api, frozen=True):
    """Where v1beta1 has the attributes."""

    attributes: dict[str, DeviceAttribute] = msgspec.field(default_factory=dict)
    taints: tuple[DriverTaint, ...] = ()


class SliceDevice(Api, frozen=True):
    name: str
    attributes: dict[str, DeviceAttribute] = msgspec.field(default_factory=dict)
    basic: BasicDevice | None = None
    taints: tuple[DriverTaint, ...] = ()

    def texts(self, driver: str, *names: str) -> tuple[str, ...]:
        """Values of the attributes, without empty ones."""
        found = self.attributes if self.basic is None else self.basic.attributes
        keys = [key for name in names for key in _qualified(name, driver)]
        return tuple(found[key].string for key in keys if key in found and found[key].string)


class NamedDevice(Api, frozen=True):
    """What is kept of a device. address, uuid: of the card, in the form in which they are compared; empty if the driver
    does not publish them. taints: set by the driver, of a device that has one of both."""

    name: str
    address: str = ""
    uuid: str = ""
    taints: tuple[DriverTaint, ...] = ()


class SlicePool(Api, frozen=True):
    name: str = ""
    generation: int = 0
    resource_slice_count: int = 0


class SliceSpec(Api, frozen=True):
    """kept: from ``devices``, which are dropped; identified: how many of them have a PCI address or UUID. Both are no
    fields of the API."""

    driver: str = ""
    pool: SlicePool = SlicePool()
    node_name: str = ""
    devices: tuple[SliceDevice, ...] = ()
    kept: tuple[NamedDevice, ...] = ()
    identified: int = 0


class ResourceSlice(Api, frozen=True):
    metadata: Metadata
    spec: SliceSpec = SliceSpec()


def slim_slice(found: ResourceSlice) -> ResourceSlice:
    """The stored part, about 2 kB for eight GPUs; a slice that belongs to no single node has no devices left."""
    spec = found.spec
    intern = sys.intern
    kept = tuple(_kept(device, spec.driver) for device in spec.devices) if spec.node_name else ()
    return ResourceSlice(
        metadata=Metadata(name=found.metadata.name, resource_version=found.metadata.resource_version),
        spec=SliceSpec(
            driver=intern(spec.driver),
            pool=msgspec.structs.replace(spec.pool, name=intern(spec.pool.name)),
            node_name=intern(spec.node_name),
            kept=kept,
            identified=sum(bool(each.address or each.uuid) for each in kept),
        ),
    )


def _kept(device: SliceDevice, driver: str) -> NamedDevice:
    taints = device.taints if device.basic is None else device.basic.taints
    address = _identity(device.texts(driver, ADDRESS, DRIVERS_ADDRESS))
    uuid = _identity(device.texts(driver, PARENT, UUID))  # the parent's first: a part of a card has its own, too
    return NamedDevice(
        name=sys.intern(device.name),
        address=address,
        uuid=uuid,
        taints=tuple(_short(each) for each in strongest(taints)) if address or uuid else (),
    )


def strongest(taints: Iterable[DriverTaint]) -> tuple[DriverTaint, ...]:
    """As many as are kept of a device, the strongest first."""
    return tuple(sorted(taints, key=lambda each: (not each.keeps_out, each.effect != "NoExecute"))[:TAINTS_LIMIT])


def _short(taint: DriverTaint) -> DriverTaint:
    return DriverTaint(
        key=shorten(taint.key, _TEXT_LIMIT),
        value=shorten(taint.value, _TEXT_LIMIT),
        effect=sys.intern(shorten(taint.effect, _WORD_LIMIT)),
        time_added=shorten(taint.time_added, _WORD_LIMIT),
    )


def _identity(texts: tuple[str, ...]) -> str:
    return next((device_identity(text) for text in texts), None) or ""
