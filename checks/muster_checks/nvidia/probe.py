"""One reading of all NVIDIA GPUs of a node, shared by the checks that want it at the same time.

NVML first, in a child process; `nvidia-smi -q -x` where NVML's library cannot be used. Whoever asks while a reading is
under way waits for it; whoever asks soon after gets the same one.
"""

import asyncio
from collections.abc import Sequence
from weakref import WeakKeyDictionary

import msgspec

from muster_checks.base.bounded_read import Unreadable
from muster_checks.base.commands import Output, python_child
from muster_checks.base.declaration import NodeView
from muster_checks.base.execution import CannotTell, NotHere, ToolMissing
from muster_checks.base.threads import in_thread
from muster_checks.hardware.pci import PciDevice, nvidia_gpus
from muster_checks.nvidia import KNOWN_GPUS
from muster_checks.nvidia.gpu import (
    BankHistogram,
    ClocksEvent,
    Ecc,
    EccCounts,
    Gpu,
    GpuClocks,
    GpuFabric,
    GpuReading,
    NvLink,
    NvmlReply,
    Pcie,
    Power,
    RecoveryAction,
    RemappedRows,
    RetiredPages,
    Temperature,
)

__all__ = [
    "BankHistogram",
    "ClocksEvent",
    "Ecc",
    "EccCounts",
    "Gpu",
    "GpuClocks",
    "GpuFabric",
    "GpuReading",
    "NvLink",
    "Pcie",
    "Power",
    "RecoveryAction",
    "RemappedRows",
    "RetiredPages",
    "Temperature",
    "read_gpus",
]

SHARED_S = 10.0  # checks of one pass run within it
READ_TIMEOUT_S = 30.0  # without the persistence daemon the driver wakes every GPU first, seconds each
# a process that hangs in the driver may not even die of SIGKILL: one of them every five minutes, not every pass
HUNG_S = 300.0
NVML_CHILD = python_child("muster_checks.nvidia.nvml_child")
LIBRARY = "libnvidia-ml.so.1"
INSTALL = "the NVIDIA driver (Debian: libnvidia-ml1, nvidia-smi); a container needs NVIDIA_DRIVER_CAPABILITIES=utility"

# nvmlReturn_t of nvmlInit and nvmlDeviceGetCount
_NO_LIBRARY = (-1, 12)
_REASONS = {
    4: ("NoPermission", "run it as root, or give it the /dev/nvidia* devices"),
    9: ("DriverNotLoaded", "the kernel module nvidia is not loaded: see the kernel log, then modprobe nvidia"),
    18: ("DriverMismatch", "library and kernel module are of different drivers: reboot, or reload the module"),
}


async def read_gpus(node: NodeView, max_age_s: float = SHARED_S) -> GpuReading:
    """Every GPU that the driver knows.

    max_age_s: a reading that is younger is shared; 0 asks anew
    Raises NotHere (no NVIDIA GPU on the PCI bus), ToolMissing, CannotTell or Unreadable.
    """
    flight = _flights.get(node)
    if flight is None or not flight.serves(node.history.clock(), max_age_s):
        flight = _flights[node] = _SharedReading(node)
    # shielded: one caller's time-out must not end the reading for the others
    outcome = await asyncio.shield(flight.task)
    if isinstance(outcome, Exception):
        raise outcome.with_traceback(None)
    return outcome


class _SharedReading:
    """One reading, under way or done. ``ended``: when, by the history's clock."""

    def __init__(self, node: NodeView) -> None:
        self.ended = 0.0
        self.hung = False
        self.task = asyncio.create_task(self._read(node))

    def serves(self, now: float, max_age_s: float) -> bool:
        if self.task.cancelled():
            return False
        if not self.task.done():
            return True
        return 0 <= now - self.ended < (HUNG_S if self.hung else max_age_s)

    async def _read(self, node: NodeView) -> "GpuReading | Exception":
        try:
            reading = await _read(node)
            # hundreds of PCI functions take longer to read than an event loop should stand still
            return _with_missing(node, reading, await in_thread(node, nvidia_gpus, node))
        except (NotHere, CannotTell, Unreadable) as error:
            self.hung = isinstance(error, _Hung)
            return error
        finally:
            self.ended = node.history.clock()


_flights: "WeakKeyDictionary[NodeView, _SharedReading]" = WeakKeyDictionary()


class _Hung(CannotTell):
    """The driver lets its callers hang."""


async def _read(node: NodeView) -> GpuReading:
    if not await in_thread(node, nvidia_gpus, node):
        raise NotHere("no NVIDIA GPU on the PCI bus (vendor 10de, class 0300 or 0302)")
    output = await node.commands.run(NVML_CHILD, timeout_s=READ_TIMEOUT_S)
    try:
        return parse_reply(output)
    except _Hung:
        raise
    except (ToolMissing, Unreadable, _Crashed) as error:
        return await _from_smi(node, error)


class _Crashed(CannotTell):
    """NVML took its process with it; another program may fare better."""


def parse_reply(output: Output) -> GpuReading:
    """What the NVML child printed. Raises CannotTell, ToolMissing or Unreadable."""
    if output.timed_out:
        raise _Hung(f"NVML gave no answer within {output.duration_s:.0f} s: the driver hangs, see dmesg", "DriverHung")
    if not output.ok:
        raise _Crashed(f"NVML: {output.trouble}", "NvmlCrashed")
    try:
        answer = msgspec.json.decode(output.stdout, type=NvmlReply)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Unreadable(f"NVML child: {error}") from None
    if answer.reading is not None:
        return answer.reading
    if answer.failed in _NO_LIBRARY:
        raise ToolMissing(LIBRARY, INSTALL)
    reason, advice = _REASONS.get(answer.failed, ("NvmlFailed", "see dmesg"))
    raise CannotTell(f"NVML: {answer.text}; {advice}", reason)


async def _from_smi(node: NodeView, first: Exception) -> GpuReading:
    """From nvidia-smi; where that is no help, what NVML came to stands."""
    from muster_checks.nvidia.smi_xml import parse  # rarely needed

    output = await node.commands.run(("nvidia-smi", "-q", "-x"), timeout_s=READ_TIMEOUT_S)
    if output.missing:
        raise first
    if output.timed_out:
        raise _Hung(f"{output.trouble}: the driver hangs, see dmesg", "DriverHung")
    try:
        # a warning of its own (a corrupt infoROM, say) gives an exit code beside a whole document
        return parse(output.stdout)
    except Unreadable:
        if output.trouble:
            raise CannotTell(output.trouble, "SmiFailed") from None
        raise


def _with_missing(node: NodeView, reading: GpuReading, devices: Sequence[PciDevice]) -> GpuReading:
    """With the addresses of those too lost to tell, and of those that were there at an earlier reading.

    A GPU that somebody handed to another driver (vfio-pci) is not missing.
    """
    gpus = _fill_addresses(reading.gpus, [device.address for device in devices if device.driver in ("", "nvidia")])
    present = {gpu.address for gpu in gpus if gpu.address}
    given_away = {device.address for device in devices if device.driver not in ("", "nvidia")}
    missing = node.history.of(KNOWN_GPUS).keys() - present - given_away
    node.history.note(KNOWN_GPUS, dict.fromkeys(present, 1.0))
    return msgspec.structs.replace(reading, gpus=gpus, missing=tuple(sorted(missing)))


def _fill_addresses(gpus: tuple[Gpu, ...], devices: list[str]) -> tuple[Gpu, ...]:
    """NVML numbers GPUs in the order of their PCI addresses: where as many have none as addresses are left over, these
    are theirs."""
    left = sorted(set(devices) - {gpu.address for gpu in gpus})
    if len(left) != sum(not gpu.address for gpu in gpus):
        return gpus
    return tuple(gpu if gpu.address else msgspec.structs.replace(gpu, address=left.pop(0)) for gpu in gpus)
