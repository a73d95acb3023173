"""Which pods hold which devices, as the kubelet tells it on its pod-resources socket.

Messages and their numbers: k8s.io/kubelet, pkg/apis/podresources/v1/api.proto (v1alpha1, which kubelets before 1.20
have instead, numbers what is read here the same way); device plug-ins since 1.15, claims of DRA where the kubelet tells
them (1.34, before that by a feature gate). The kubelet lists pods that may use a device: those that have ended are out.
It asks its clients to bear a refusal for too many questions.

The connection is kept: a process that has given up its rights may not open another (the folder is root's).
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

if TYPE_CHECKING:
    from muster_agent.idle.grpc_call import UnaryConnection

ANSWER_S = 1.5  # it takes milliseconds; a node under test must be given back within 5 s, the end of its tools included
LIMIT_BYTES = 4 << 20  # gRPC's own default; 500 pods of ten containers are 1 MB
RATE_LIMITED_S = 0.2  # the kubelet takes 100 questions a second
METHODS = ("/v1.PodResourcesLister/List", "/v1alpha1.PodResourcesLister/List")
_NAME_LIMIT = 253

NO_ACCELERATOR = re.compile(
    r"""
    (?:cpu|memory|ephemeral-storage|hugepages-.*|attachable-volumes-.*)  # the kubelet's own
    | dra\.(?:cpu|memory|net)  # sigs.k8s.io drivers of just these
    | .*(?:rdma|sriov|sr-iov|roce|infiniband|mlnx|hostdev|macvtap|vhost|dpdk|netdevice).*  # network cards, by function
    | (?:mellanox\.com|openshift\.io|k8s\.cni\.cncf\.io)/.*  # their operators' names
    | .*\.network\.kubevirt\.io/.* | .*networking\.gke\.io.*/.*
    | (?:.*/)?(?:efa|eni|pod-eni|branch-eni|nic|nics|ib|hca|vf|pf|uverbs)(?:[-_.0-9].*)?
    | vpc\.amazonaws\.com/.*
    | devices\.kubevirt\.io/.* | (?:.*/)?(?:kvm|tun|fuse|tpm|vtpm|snd|ttyacm|usb)(?:[-_.0-9].*)?  # plain devices
    | (?:qat|sgx|dsa|iax|dlb)\.intel\.com/.* | intel\.com/(?:qat|sgx).* | .*nitro_enclaves  # no accelerators of ours
    | compute-domain\.nvidia\.com(?:/.*)?  # IMEX channels; the GPUs beside them are claimed, too
    """,
    re.X | re.I,
)
"""Resources and DRA drivers that are no accelerator. All else is one: plug-ins rename what they hand out
(nvidia.com/mig-1g.10gb, nvidia.com/gpu.shared, volcano.sh/vgpu-number), and a node that is taken for busy only waits
for its tests, while one that is taken for idle has its job disturbed."""


class DeviceHolder(msgspec.Struct, frozen=True, order=True):
    """A pod with accelerators. ``resources``: what it holds (``nvidia.com/gpu``, a DRA driver's name), sorted."""

    pod: str
    resources: tuple[str, ...]


class HoldersUnknown(Exception):
    """The kubelet is there, and does not tell. ``str()``: what was asked, what came, what to do."""


class PodResources:
    """Asks the kubelet on ``path``. Callers that come while it is asked share the answer."""

    def __init__(
        self,
        path: Path,
        *,
        answer_s: float = ANSWER_S,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self.path = path
        self.lost = False
        """The connection is gone, and this process may not open another, though it could at its start."""
        self.answer_s = answer_s
        self._sleep = sleep
        self._method = 0
        self._reader = PodResourcesReader()
        self._connection: UnaryConnection | None = None
        self._seen = False
        self._could_open = self._forbidden = False
        self._asking: asyncio.Task[list[DeviceHolder] | HoldersUnknown | None] | None = None

    def open_now(self) -> None:
        """Connect while the process may; needs no event loop. What fails is told by the first :meth:`holders`."""
        with contextlib.suppress(HoldersUnknown):
            self._connect_if_needed()
        self._could_open = not self._forbidden

    def close(self) -> None:
        if self._asking is None or self._asking.done():
            self._disconnect()
        else:  # not under the hands of the loop that still reads
            self._asking.add_done_callback(lambda _: self._disconnect())
            self._asking.cancel()

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = None

    async def holders(self) -> list[DeviceHolder] | None:
        """Pods that hold an accelerator, sorted; None where there is no kubelet's socket. Takes answer_s at most.

        Raises HoldersUnknown.
        """
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._ask())
        # shielded: a caller that goes away leaves a whole connection behind
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
            return HoldersUnknown(f"{self.path}: the kubelet gave no answer within {self.answer_s:g} s")
        except MalformedMessage as error:
            return HoldersUnknown(f"{self.path}: the kubelet's answer cannot be read: {error}")
        except HoldersUnknown as untold:
            return untold

    async def _message(self, kept: bool) -> bytes:
        """The kubelet's answer. ``kept``: the connection is an old one. Raises HoldersUnknown."""
        # here, not above: h2 is of no use where no kubelet is
        from muster_agent.idle.grpc_call import (
            RESOURCE_EXHAUSTED,
            UNIMPLEMENTED,
            GrpcCallFailed,
            GrpcConnectionBroken,
            GrpcError,
        )

        while True:
            if not self._connect_if_needed() or self._connection is None:
                raise HoldersUnknown(f"{self.path}: is gone; is the kubelet running?")
            try:
                return await self._connection.call(METHODS[self._method], limit_bytes=LIMIT_BYTES)
            except GrpcConnectionBroken as error:
                self._disconnect()
                if not kept:
                    raise HoldersUnknown(f"{self.path}: {error}") from None
                kept = False  # the kubelet was started anew, and listens again
            except GrpcError as refused:
                if refused.status == UNIMPLEMENTED and self._method + 1 < len(METHODS):
                    self._method += 1
                elif refused.status == RESOURCE_EXHAUSTED:
                    await self._sleep(RATE_LIMITED_S)
                else:
                    self._method = 0  # of a kubelet that was updated
                    raise HoldersUnknown(f"{self.path}: {refused}") from None
            except GrpcCallFailed as error:
                raise HoldersUnknown(f"{self.path}: {error}") from None

    def _connect_if_needed(self) -> bool:
        """False where there is no socket. Raises HoldersUnknown."""
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
                return "may not be opened again without the rights of the agent's start; restart the agent"
            return "may not be opened by this user; start the agent as root (run_as keeps what was opened)"
        if error.errno in (errno.ENOENT, errno.ENOTDIR):
            return "is gone; is the kubelet running?"
        if error.errno == errno.ECONNREFUSED:
            return "nobody listens; is the kubelet running? (mount its folder, not the socket alone)"
        return f"cannot be opened: {error.strerror or error}"


def _connect(path: Path) -> socket.socket:
    """Raises OSError."""
    connected = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    try:
        connected.connect(str(path))  # at once, or never: a full queue is EAGAIN
    except BaseException:
        connected.close()
        raise
    return connected


class PodResourcesReader:
    """Reads answers that hardly change: a pod that was in the last one is not read again, which would cost a node of
    500 pods 0.2 % of a core."""

    def __init__(self) -> None:
        self._read: dict[bytes, DeviceHolder | None] = {}

    def holders(self, message: bytes) -> list[DeviceHolder]:
        """Pods with accelerators, from a ListPodResourcesResponse. Raises MalformedMessage."""
        before = self._read
        self._read = {pod: before[pod] if pod in before else _holder(pod) for pod in _messages(message, 1)}
        # the kubelet's order changes from call to call
        return sorted(holder for holder in self._read.values() if holder is not None)


def _holder(pod: bytes) -> DeviceHolder | None:
    """From a PodResources; None where it holds no accelerator. Raises MalformedMessage."""
    name = namespace = ""
    resources: set[str] = set()
    for number, value in read_fields(pod):
        if number == 1:
            name = _text(value)
        elif number == 2:
            namespace = _text(value)
        elif number == 3:
            resources.update(_resources(_bytes(value)))
    accelerators = sorted(filter(is_accelerator, resources))
    return DeviceHolder(f"{namespace}/{name}", tuple(accelerators)) if accelerators else None


def is_accelerator(resource: str) -> bool:
    """``resource``: of a device plug-in (``nvidia.com/gpu``), or the name of a DRA driver (``gpu.nvidia.com``)."""
    return NO_ACCELERATOR.fullmatch(resource) is None


def _resources(container: bytes) -> set[str]:
    """What one container holds. An entry without devices is nothing held."""
    found: set[str] = set()
    for number, value in read_fields(container):
        if number == 2:  # ContainerDevices
            devices = dict[int, int | bytes](read_fields(_bytes(value)))
            if 2 in devices:
                found.add(_text(devices.get(1, b"")))
        elif number == 5:  # DynamicResource
            found.update(_drivers(_bytes(value)))
    return found


def _drivers(claim: bytes) -> set[str]:
    """The DRA drivers of a claim's devices; before kubelets named them, the kind of their CDI devices."""
    found: set[str] = set()
    for resource in _messages(claim, 4):
        driver = ""
        kinds: set[str] = set()
        for number, value in read_fields(resource):
            if number == 2:
                driver = _text(value)
            elif number == 1:
                kinds.update(_text(name).partition("=")[0] for name in _messages(_bytes(value), 1))
        found.update({driver} if driver else kinds)
    return found


def _messages(message: bytes, wanted: int) -> list[bytes]:
    return [_bytes(value) for number, value in read_fields(message) if number == wanted]


def _bytes(value: int | bytes) -> bytes:
    if isinstance(value, int):
        raise MalformedMessage("a number where a message should stand")
    return value


def _text(value: int | bytes) -> str:
    text = _bytes(value).decode("utf-8", "replace")[:_NAME_LIMIT]
    return "".join(character if character.isprintable() else "?" for character in text)
