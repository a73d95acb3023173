"""What every child does: work on one GPU after the other, report each start and result, and die rather than hang.

A GPU that exceeds its time ends the process (SIGALRM in its default disposition also ends it inside a driver call). The
launcher then starts it again with ``--first`` set to the next GPU.
"""

import argparse
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from muster_checks.cuda.driver import LIBRARY, CudaDevice, CudaDriver, CudaError
from muster_checks.cuda.protocol import GpuFailure, GpuStart, Line, NoUsableGpu, encode
from muster_checks.hardware.pci import normal_address

UNAVAILABLE = 3  # exit code; 0: every GPU was reported, with whatever result

Work = Callable[[CudaDevice, int, argparse.Namespace], Line]
"""Measures one GPU, whose context has been entered. Raises CudaError."""


def parser() -> argparse.ArgumentParser:
    arguments = argparse.ArgumentParser(description="works on each GPU in turn; prints one JSON object per line")
    arguments.add_argument("--first", type=int, default=0, metavar="N", help="skip the GPUs before number N")
    arguments.add_argument("--only", default="", metavar="ADDRESS", help="skip all GPUs but the one with this address")
    arguments.add_argument("--per-gpu-s", type=float, default=60.0, help="exit if one GPU takes longer than this")
    arguments.add_argument("--root", type=Path, default=Path("/"), help="root folder for /sys")
    arguments.add_argument("--library", default=LIBRARY, help="the driver's library")
    return arguments


def main(work: Work, arguments: argparse.Namespace, say: Callable[[Line], None] | None = None) -> int:
    """The exit code. ``say`` receives the lines; by default they go to stdout."""
    say = say or _print
    # the check means all GPUs of the node, in the order of their addresses
    os.environ.pop("CUDA_VISIBLE_DEVICES", None)
    os.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, arguments.per_gpu_s)
    try:
        driver = CudaDriver(arguments.library)
        count = driver.count()
    except (OSError, CudaError) as error:
        say(NoUsableGpu(str(error)))
        return UNAVAILABLE
    for index in range(arguments.first, count):
        signal.setitimer(signal.ITIMER_REAL, arguments.per_gpu_s)
        try:
            device = driver.device(index)
            address = device.address()
            if arguments.only and normal_address(address) != normal_address(arguments.only):
                continue  # without a context: whoever uses it notices nothing
            say(GpuStart(index, count, address, device.name()))
            bind_to_cpus(address, arguments.root)
            with device.context():
                line = work(device, index, arguments)
        except CudaError as error:
            line = GpuFailure(index, error.call, error.error)
        say(line)
    signal.setitimer(signal.ITIMER_REAL, 0)
    return 0


def bind_to_cpus(address: str, root: Path) -> None:
    """Run on the CPUs next to the GPU: a copy across sockets would measure the link between the sockets."""
    try:
        text = (root / "sys/bus/pci/devices" / address / "local_cpulist").read_text()
        os.sched_setaffinity(0, parse_cpus(text))
    except (OSError, ValueError):  # no such file, or a container that may not use these CPUs: stay on the current ones
        return


def parse_cpus(text: str) -> set[int]:
    """``0-3,8,10-11`` as a set. Raises ValueError."""
    found: set[int] = set()
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return found


def _print(line: Line) -> None:
    sys.stdout.buffer.write(encode(line))
    sys.stdout.buffer.flush()


def run(work: Work, arguments: Sequence[str] | None, options: argparse.ArgumentParser | None = None) -> int:
    return main(work, (options or parser()).parse_args(arguments))
