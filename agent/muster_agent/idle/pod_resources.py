"""Which pods hold which devices, from the kubelet's pod-resources socket.

Messages and field numbers: k8s.io/kubelet, pkg/apis/podresources/v1/api.proto. The fields read here have the same
numbers in v1alpha1, which kubelets before 1.20 have instead. Device plug-ins are reported since 1.15, claims of DRA
since 1.34, before that behind a feature gate. The kubelet lists pods that may use a device, so not those that have
ended. It rate-limits its clients.

The connection is kept: a process that has dropped its privileges cannot open another, because the folder is root's.
"""

import asyncio
import contextlib
import errno
import re
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from muster_agent.idle.protobuf import MalformedMessage, read_fields
from muster_kube.nodehealth import device_digest

if TYPE_CHECKING:
    from muster_agent.idle.grpc_call import UnaryConnection

ANSWER_S = 1.5  # normally milliseconds; a heavy check must give way within 5 s, including the end of its tools
LIMIT_BYTES = 4 << 20  # gRPC's default; 500 pods with ten containers each are 1 MB
RATE_LIMITED_S = 0.2  # the kubelet accepts 100 requests per second
METHODS = ("/v1.PodResourcesLister/List", "/v1alpha1.PodResourcesLister/List")
_NAME_LIMIT = 253
_GONE = "the socket no longer exists: check that the kubelet runs"

NO_ACCELERATOR = re.compile(
    r"""
    (?:cpu|memory|ephemeral-storage|hugepages-.*|attachable-volumes-.*)  # the kubelet's own resources
    | dra\.(?:cpu|memory|net)  # sigs.k8s.io drivers of just these
    | .*(?:rdma|sriov|sr-iov|roce|infiniband|mlnx|hostdev|macvtap|vhost|dpdk|netdevice).*  # network cards, by function
    | (?:mellanox\.com|openshift\.io|k8s\.cni\.cncf\.io)/.*  # their operators' names
    | .*\.network\.kubevirt\.io/.* | .*networking\.gke\.io.*/.*
    | (?:.*/)?(?:efa|eni|pod-eni|branch-eni|nic|nics|ib|hca|vf|pf|uverbs)(?:[-_.0-9].*)?
    | vpc\.amazonaws\.com/.*
    | devices\.kubevirt\.io/.* | (?:.*/)?(?:kvm|tun|fuse|tpm|vtpm|snd|ttyacm|usb)(?:[-_.0-9].*)?  # plain devices
    | (?:qat|sgx|dsa|iax|dlb)\.intel\.com/.* | intel\.com/(?:qat|sgx).* | .*nitro_enclaves  # not for Muster
    | compute-domain\.nvidia\.com(?:/.*)?  # IMEX channels; their users claim GPUs too
    """,
    re.X | re.I,
)
"""Resources and DRA drivers that are not accelerators. All others count as accelerators, because plug-ins rename their
resources (nvidia.com/mig-1g.10gb, nvidia.com/gpu.shared, volcano.sh/vgpu-number). A node that is wrongly busy has its
tests delayed; a node that is wrongly idle has its job disturbed."""


class DeviceHolder(msgspec.Struct, frozen=True):
    """A pod with accelerators. resources: resource names (``nvidia.com/gpu``) and names of DRA drivers, sorted.
    names: :func:`muster_kube.nodehealth.device_digest` of its devices; None if the kubelet does not name all."""

    pod: str
    resources: tuple[str, ...]
    names: frozenset[str] | None = None


class HoldersUnknown(Exception):
    """There is a kubelet, but it does not report its pods. The message says why, and what to do."""


class PodResources:
    """Client of the kubelet's socket ``path``. Concurrent callers share one request."""

    def __init__(
        self,
        path: Path,
        *,
        answer_s: float = ANSWER_S,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self.path = path
        self.lost = False
        """The connection is lost, and this process has dropped the privileges to open another."""
        self.answer_s = answer_s
        self._sleep = sleep
        self._method = 0
        self._reader = PodResourcesReader()
        self._connection: UnaryConnection | None = None
        self._seen = False
        self._could_open = self._forbidden = False
        self._asking: asyncio.Task[list[DeviceHolder] | HoldersUnknown | None] | None = None

    def open_now(self) -> None:
        """Connect while the process has the privileges; needs no event loop. :meth:`holders` reports failures."""
        with contextlib.suppress(HoldersUnknown):
            self._connect_if_needed()
        self._could_open = not self._forbidden

    def close(self) -> None:
        if self._asking is None or self._asking.done():
            self._disconnect()
        else:  # only after the pending read has ended
            self._asking.add_done_callback(lambda _: self._disconnect())
            self._asking.cancel()

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = None

    async def holders(self) -> list[DeviceHolder] | None:
        """Pods that hold an accelerator, sorted; None if there is no socket of a kubelet. Takes at most answer_s.

        Raises HoldersUnknown.
        """
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._ask())
        # shielded: a cancelled caller must not leave the connection in the middle of an answer
        outcome = await asyncio.shield(self._asking)
        if isinstance(outcome, HoldersUnknown):
            raise outcome.with_traceback(None)
        return outcome

    async def _ask(self) -> "list[DeviceHolder] | HoldersUnknown | None":
        kept = self._connection is not None
        try:
            if not self._connect_if_needed():
                return None
            async with asyncio.timeout(self.answer_s):
                return self._reader.holders(await self._message(kept))
        except TimeoutError:
            return HoldersUnknown(f"{self.path}: the kubelet did not answer within {self.answer_s:g} s")
        except MalformedMessage as error:
            return HoldersUnknown(f"{self.path}: cannot decode the kubelet's answer: {error}")
        except HoldersUnknown as error:
            return error

    async def _message(self, kept: bool) -> bytes:
        """The kubelet's answer. kept: the connection was opened earlier. Raises HoldersUnknown."""
        # here, not above: h2 is needed only with a kubelet
        from muster_agent.idle.grpc_call import (
            RESOURCE_EXHAUSTED,
            UNIMPLEMENTED,
            GrpcCallFailed,
            GrpcConnectionBroken,
            GrpcError,
        )

        while True:
            if not self._connect_if_needed() or self._connection is None:
                raise HoldersUnknown(f"{self.path}: {_GONE}")
            try:
                return await self._connection.call(METHODS[self._method], limit_bytes=LIMIT_BYTES)
            except GrpcConnectionBroken as error:
                self._disconnect()
                if not kept:
                    raise HoldersUnknown(f"{self.path}: {error}") from None
                kept = False  # the kubelet may have restarted
            except GrpcError as refused:
                if refused.status == UNIMPLEMENTED and self._method + 1 < len(METHODS):
                    self._method += 1
                elif refused.status == RESOURCE_EXHAUSTED:
                    await self._sleep(RATE_LIMITED_S)
                else:
                    self._method = 0  # the kubelet may have been updated
                    raise HoldersUnknown(f"{self.path}: {refused}") from None
            except GrpcCallFailed as error:
                raise HoldersUnknown(f"{self.path}: {error}") from None

    def _connect_if_needed(self) -> bool:
        """False if there is no socket. Raises HoldersUnknown."""
        if self._connection is not None:
            return True
        try:
            connected = _connect(self.path)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENOTDIR) and not self._seen:
                return False
            raise HoldersUnknown(f"{self.path}: {self._why(error)}") from None
        from muster_agent.idle.grpc_call import UnaryConnection

        self._seen = True
        self._connection = UnaryConnection(connected)
        return True

    def _why(self, error: OSError) -> str:
        self._forbidden = error.errno in (errno.EACCES, errno.EPERM)
        if self._forbidden:
            if self._could_open:
                self.lost = True
                return "cannot reconnect after dropping privileges: restart the agent"
            return "permission denied: start the agent as root (with run_as, it keeps the connection)"
        if error.errno in (errno.ENOENT, errno.ENOTDIR):
            return _GONE
        if error.errno == errno.ECONNREFUSED:
            return "connection refused: check that the kubelet runs, and mount its folder, not only the socket"
        return f"cannot connect: {error.strerror or error}"


def _connect(path: Path) -> socket.socket:
    """Raises OSError."""
    connected = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    try:
        connected.connect(str(path))  # never blocks: a full queue is EAGAIN
    except BaseException:
        connected.close()
        raise
    return connected


class PodResourcesReader:
    """Decodes the answers. Pods that were in the previous answer are not decoded again; on a node with 500 pods, that
    would take 0.2 % of a core."""

    def __init__(self) -> None:
        self._read: dict[bytes, DeviceHolder | None] = {}

    def holders(self, message: bytes) -> list[DeviceHolder]:
        """Pods with accelerators, from a ListPodResourcesResponse. Raises MalformedMessage."""
        before = self._read
        self._read = {pod: before[pod] if pod in before else _holder(pod) for pod in _messages(message, 1)}
        # the kubelet's order changes from call to call
        holders = (holder for holder in self._read.values() if holder is not None)
        return sorted(holders, key=lambda holder: (holder.pod, holder.resources))


def _holder(pod: bytes) -> DeviceHolder | None:
    """From a PodResources; None if it holds no accelerator. Raises MalformedMessage."""
    name = namespace = ""
    resources: dict[str, set[str] | None] = {}
    for number, value in read_fields(pod):
        if number == 1:
            name = _text(value)
        elif number == 2:
            namespace = _text(value)
        elif number == 3:
            for resource, devices in _resources(_bytes(value)).items():
                resources[resource] = _joined(resources.get(resource, set()), devices)
    accelerators = sorted(filter(is_accelerator, resources))
    if not accelerators:
        return None
    named: set[str] | None = set()
    for resource in accelerators:
        named = _joined(named, resources[resource])
    return DeviceHolder(f"{namespace}/{name}", tuple(accelerators), None if named is None else frozenset(named))


def _joined(one: set[str] | None, other: set[str] | None) -> set[str] | None:
    """None: not all are known."""
    return None if one is None or other is None else one | other


def is_accelerator(resource: str) -> bool:
    """resource: resource of a device plug-in (``nvidia.com/gpu``), or name of a DRA driver (``gpu.nvidia.com``)."""
    return NO_ACCELERATOR.fullmatch(resource) is None


def _resources(container: bytes) -> dict[str, set[str] | None]:
    """The resources of one container, and the digests of their devices' names; None if they are not named. Entries
    without devices do not count."""
    found: dict[str, set[str] | None] = {}
    for number, value in read_fields(container):
        if number == 2:  # ContainerDevices
            devices = dict[int, int | bytes](read_fields(_bytes(value)))
            if 2 in devices:
                found[_text(devices.get(1, b""))] = None  # by the names of its plug-in, which no other API has
        elif number == 5:  # DynamicResource
            for driver, names in _drivers(_bytes(value)).items():
                found[driver] = _joined(found.get(driver, set()), names)
    return found


def _drivers(claim: bytes) -> dict[str, set[str] | None]:
    """The same for a claim: by DRA driver; with kubelets that do not name it, by the kind of their CDI devices."""
    found: dict[str, set[str] | None] = {}
    for resource in _messages(claim, 4):
        driver = pool = device = ""
        kinds: set[str] = set()
        for number, value in read_fields(resource):
            if number == 2:
                driver = _text(value)
            elif number == 3:
                pool = _text(value)
            elif number == 4:
                device = _text(value)
            elif number == 1:
                kinds.update(_text(name).partition("=")[0] for name in _messages(_bytes(value), 1))
        names = {device_digest(driver, pool, device)} if driver and pool and device else None
        for each in {driver} if driver else kinds:
            found[each] = _joined(found.get(each, set()), names)
    return found


def _messages(message: bytes, wanted: int) -> list[bytes]:
    return [_bytes(value) for number, value in read_fields(message) if number == wanted]


def _bytes(value: int | bytes) -> bytes:
    if isinstance(value, int):
        raise MalformedMessage("a varint in place of a message")
    return value


def _text(value: int | bytes) -> str:
    text = _bytes(value).decode("utf-8", "replace")[:_NAME_LIMIT]
    return "".join(character if character.isprintable() else "?" for character in text)
