"""What nvidia-smi prints of three kinds of GPUs, and GPUs made for one test."""

from collections.abc import Sequence
from pathlib import Path

import msgspec
from tests.checks.nvidia import smi_document

from muster_checks.base.counter_history import CounterSeries, History
from muster_checks.nvidia.gpu import Gpu, GpuReading
from muster_checks.nvidia.smi_xml import parse

SAMPLES = Path(__file__).parent / "samples"
H100 = smi_document.document("580.95.05", [smi_document.h100(place) for place in range(8)])
T4 = smi_document.document("590.48.01", [smi_document.t4()])
_SOUND, _LOST = (smi_document.gb200(place, f"00000001:{bus}:00.0") for place, bus in enumerate(("0C", "0D")))
LOST = smi_document.document("580.95.05", [_SOUND, smi_document.lost(_LOST)])
NVLINK_STATUS = (SAMPLES / "nvlink-h100.txt").read_bytes()


def healthy() -> Gpu:
    """GPU 0 of the 8 H100."""
    return parse(H100).gpus[0]


def of(*gpus: Gpu, missing: Sequence[str] = ()) -> GpuReading:
    return GpuReading(source="nvml", gpus=gpus, missing=tuple(missing))


def changed(gpu: Gpu, **parts: object) -> Gpu:
    """``gpu`` with values replaced; a dict replaces values within a part: ``remapped={"pending": True}``."""
    values = {
        name: msgspec.structs.replace(getattr(gpu, name), **value)
        if isinstance(value, dict) and name != "errors"
        else value
        for name, value in parts.items()
    }
    return msgspec.structs.replace(gpu, **values)


def numbered(gpu: Gpu, *places: int) -> list[Gpu]:
    """Equals of ``gpu`` with addresses of their own."""
    return [msgspec.structs.replace(gpu, index=place, address=f"0000:{place:02x}:00.0") for place in places]


def series(**points: Sequence[tuple[float, float]]) -> dict[str, CounterSeries]:
    """Series as History makes them, of ``(seconds, value)``."""
    now = [0.0]
    history = History(lambda: now[0])
    for at in sorted({at for values in points.values() for at, _ in values}):
        now[0] = at
        history.note("x", {name: value for name, values in points.items() for when, value in values if when == at})
    return history.of("x")
