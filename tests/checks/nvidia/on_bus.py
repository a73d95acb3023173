"""A node with NVIDIA GPUs on its PCI bus."""

from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from muster_checks.base.commands import Output
from muster_checks.base.declaration import NodeView
from muster_checks.nvidia.gpu import GpuReading, NvmlReply
from muster_checks.nvidia.probe import NVML_CHILD
from muster_checks.testing.recorded import Answer as Said
from muster_checks.testing.recorded import lay_out, node

CHILD = " ".join(NVML_CHILD)
XML = "nvidia-smi -q -x"


def put_gpus(root: Path, *addresses: str, driver: str = "nvidia") -> None:
    """GPUs in sysfs, bound to ``driver`` (empty: to none)."""
    for address in addresses:
        folder = f"/sys/bus/pci/devices/{address}"
        lay_out(root, {f"{folder}/vendor": "0x10de", f"{folder}/device": "0x2330", f"{folder}/class": "0x030200"})
        if driver:
            bound = root / "sys/bus/pci/drivers" / driver
            bound.mkdir(parents=True, exist_ok=True)
            (root / folder.lstrip("/") / "driver").symlink_to(bound)


def answer(reading: GpuReading) -> bytes:
    """What the NVML child prints of ``reading``."""
    return msgspec.json.encode(NvmlReply(reading=reading))


def failure(code: int, text: str = "trouble") -> bytes:
    return msgspec.json.encode(NvmlReply(failed=code, text=text))


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def gpu_node(
    root: Path,
    said: "Said | Mapping[str, Said] | GpuReading",
    *addresses: str,
    clock: Callable[[], float] | None = None,
) -> NodeView:
    """A node with GPUs at ``addresses`` (one, if none is given) whose NVML child says ``said``."""
    put_gpus(root, *(addresses or ("0000:18:00.0",)))
    if isinstance(said, GpuReading):
        said = answer(said)
    answers: dict[str, Said] = dict(said) if isinstance(said, Mapping) else {CHILD: said}
    return node(root, answers, clock or Clock())


def calls(of: NodeView) -> list[str]:
    """The programs that were run on a recorded node, by their last word."""
    run: list[tuple[tuple[str, ...], float]] = of.commands.calls  # type: ignore[attr-defined] # RecordedCommands
    return [line[-1] for line, _ in run]


def ended(exit_code: int | None = 0, stdout: bytes = b"", **how: object) -> Output:
    return Output(argv=NVML_CHILD, exit_code=exit_code, stdout=stdout, **how)  # type: ignore[arg-type] # Output's own
