"""One reading of all NVIDIA GPUs of a node, shared by the checks that need it at the same time.

The reading comes from NVML in a child process, or from `nvidia-smi -q -x` if the NVML library cannot be used. A caller
that requests a reading while one is in progress waits for it; a caller shortly afterwards gets the same one.
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

SHARED_S = 10.0  # the checks of one pass run within this time
READ_TIMEOUT_S = 30.0  # without the persistence daemon the driver first initialises every GPU, which takes seconds each
# SIGKILL may not end a process that hangs in the driver: start one every five minutes at most, not in every pass
HUNG_S = 300.0
NVML_CHILD = python_child("muster_checks.nvidia.nvml_child")
LIBRARY = "libnvidia-ml.so.1"
INSTALL = "the NVIDIA driver (Debian: libnvidia-ml1, nvidia-smi); a container needs NVIDIA_DRIVER_CAPABILITIES=utility"

# nvmlReturn_t of nvmlInit and nvmlDeviceGetCount
_NO_LIBRARY = (-1, 12)
_REASONS = {
    4: ("NoPermission", "run as root, or grant access to the /dev/nvidia* devices"),
    9: ("DriverNotLoaded", "the kernel module nvidia is not loaded: check the kernel log, then run modprobe nvidia"),
    18: (
        "DriverMismatch",
        "the library and the kernel module are of different driver versions: reboot, or reload the module",
    ),
}


async def read_gpus(node: NodeView, max_age_s: float = SHARED_S) -> GpuReading:
    """Every GPU that the driver lists.

    max_age_s: maximum age of a shared reading; 0 takes a new one
    Raises NotHere (no NVIDIA GPU on the PCI bus), ToolMissing, CannotTell or Unreadable.
    """
    flight = _flights.get(node)
    if flight is None or not flight.serves(node.history.clock(), max_age_s):
        flight = _flights[node] = _SharedReading(node)
    # shielded: the timeout of one caller must not end the reading for the others
    outcome = await asyncio.shield(flight.task)
    if isinstance(outcome, Exception):
        raise outcome.with_traceback(None)
    return outcome


class _SharedReading:
    """One reading, in progress or done. ``ended``: its end, on the history's clock."""

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
            # reading hundreds of PCI functions would block the event loop for too long
            return _with_missing(node, reading, await in_thread(node, nvidia_gpus, node))
        except (NotHere, CannotTell, Unreadable) as error:
            self.hung = isinstance(error, _Hung)
            return error
        finally:
            self.ended = node.history.clock()


_flights: "WeakKeyDictionary[NodeView, _SharedReading]" = WeakKeyDictionary()


class _Hung(CannotTell):
    """The driver makes its callers hang."""


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
    """The NVML child crashed; nvidia-smi may still work."""


def parse_reply(output: Output) -> GpuReading:
    """Parses the output of the NVML child. Raises CannotTell, ToolMissing or Unreadable."""
    if output.timed_out:
        raise _Hung(
            f"NVML: no answer within {output.duration_s:.0f} s: the driver hangs; see the check dmesg", "DriverHung"
        )
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
    reason, advice = _REASONS.get(answer.failed, ("NvmlFailed", "see the check dmesg"))
    raise CannotTell(f"NVML: {answer.text}; {advice}", reason)


async def _from_smi(node: NodeView, first: Exception) -> GpuReading:
    """Reads nvidia-smi. Raises the error of NVML, ``first``, if nvidia-smi is not installed."""
    from muster_checks.nvidia.smi_xml import parse  # rarely needed

    output = await node.commands.run(("nvidia-smi", "-q", "-x"), timeout_s=READ_TIMEOUT_S)
    if output.missing:
        raise first
    if output.timed_out:
        raise _Hung(f"{output.trouble}: the driver hangs; see the check dmesg", "DriverHung")
    try:
        # after a warning (for example, a corrupt infoROM) it exits with an error although its document is complete
        return parse(output.stdout)
    except Unreadable:
        if output.trouble:
            raise CannotTell(output.trouble, "SmiFailed") from None
        raise


def _with_missing(node: NodeView, reading: GpuReading, devices: Sequence[PciDevice]) -> GpuReading:
    """Adds the addresses of lost GPUs that could not report theirs, and of GPUs missing since an earlier reading.

    A GPU bound to another driver (vfio-pci) is not missing.
    """
    gpus = _fill_addresses(reading.gpus, [device.address for device in devices if device.driver in ("", "nvidia")])
    present = {gpu.address for gpu in gpus if gpu.address}
    given_away = {device.address for device in devices if device.driver not in ("", "nvidia")}
    missing = node.history.of(KNOWN_GPUS).keys() - present - given_away
    node.history.note(KNOWN_GPUS, dict.fromkeys(present, 1.0))
    return msgspec.structs.replace(reading, gpus=gpus, missing=tuple(sorted(missing)))


def _fill_addresses(gpus: tuple[Gpu, ...], devices: list[str]) -> tuple[Gpu, ...]:
    """Gives the remaining addresses to the GPUs without one, if there are as many of each. NVML numbers GPUs in the
    order of their PCI addresses."""
    left = sorted(set(devices) - {gpu.address for gpu in gpus})
    if len(left) != sum(not gpu.address for gpu in gpus):
        return gpus
    return tuple(gpu if gpu.address else msgspec.structs.replace(gpu, address=left.pop(0)) for gpu in gpus)
