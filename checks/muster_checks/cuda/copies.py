"""Child process: host-to-device and device-to-host bandwidth of each GPU, from pinned memory.

Run manually: ``python -m muster_checks.cuda.copies``.
"""

import argparse
import sys
from collections.abc import Callable
from ctypes import c_size_t, c_void_p

from muster_checks.cuda.child import run
from muster_checks.cuda.driver import CudaDevice
from muster_checks.cuda.protocol import CopyResult

# large enough that the start of a copy does not matter (nvbandwidth: 512 MiB), small enough for any pinned-memory limit
BUFFER_BYTES = 256 << 20
COPIES, TRIALS = 4, 3


def measure_copies(device: CudaDevice, index: int, _: argparse.Namespace) -> CopyResult:
    size = min(BUFFER_BYTES, device.free_bytes() // 8)
    with device.pinned(size) as host, device.memory(size) as memory:
        to_device = _bandwidth(device, size, lambda: device.call("cuMemcpyHtoDAsync_v2", memory, host, *_of(size)))
        from_device = _bandwidth(device, size, lambda: device.call("cuMemcpyDtoHAsync_v2", host, memory, *_of(size)))
    return CopyResult(index, to_device, from_device)


def _of(size: int) -> tuple[c_size_t, c_void_p]:
    return c_size_t(size), c_void_p()  # in the default stream


def _bandwidth(device: CudaDevice, size: int, copy: Callable[[], None]) -> float:
    """GB/s. The best trial counts: other work on the host only slows a copy, and nothing exceeds the link."""

    def copies() -> None:
        for _ in range(COPIES):
            copy()

    copies()  # wakes up a link that idles at a lower speed
    return COPIES * size / max(min(device.seconds(copies) for _ in range(TRIALS)), 1e-9) / 1e9


if __name__ == "__main__":
    sys.exit(run(measure_copies, None))
