"""The real child with the real pynvml, on a shared library of our own: ctypes and all, only the driver is made up.

It is compiled here. Where no compiler is, CI fails; a person's machine skips, and says what was not tested.
"""

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from tests.checks.nvidia.on_bus import put_gpus
from tests.machine import require

from muster_checks.base.commands import OUTPUT_LIMIT_BYTES, LocalCommands, Output
from muster_checks.base.declaration import NodeView
from muster_checks.base.execution import CannotTell, ToolMissing
from muster_checks.nvidia.gpu import ClocksEvent, Gpu, GpuReading, NvLink
from muster_checks.nvidia.probe import read_gpus

SOURCE = Path(__file__).parent / "fake_library.c"


class WithLibrary(LocalCommands):
    """Programs of this machine, which find the library in ``folder`` and have a short patience."""

    def __init__(self, folder: Path, mode: str, patience_s: float = 30.0) -> None:
        self._environment = {"LD_LIBRARY_PATH": str(folder), "FAKE_NVML": mode}
        self._patience_s = patience_s

    async def run(
        self,
        argv: Sequence[str],
        *,
        timeout_s: float,
        environment: Mapping[str, str] | None = None,
        limit_bytes: int = OUTPUT_LIMIT_BYTES,
    ) -> Output:
        if argv[0] == "nvidia-smi":  # whatever this machine has
            return Output(argv=tuple(argv), missing="not found")
        return await super().run(
            argv, timeout_s=min(timeout_s, self._patience_s), environment=self._environment, limit_bytes=limit_bytes
        )


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with libnvidia-ml.so.1."""
    require("gcc", "/usr/include/stdio.h")
    folder = tmp_path_factory.mktemp("nvml")
    command = ["gcc", "-shared", "-fPIC", "-Wall", "-Werror", "-o", str(folder / "libnvidia-ml.so.1"), str(SOURCE)]
    subprocess.run(command, check=True)
    return folder


def view(root: Path, library: Path, mode: str = "sound", patience_s: float = 30.0) -> NodeView:
    put_gpus(root, "0000:18:00.0", "0000:2a:00.0")
    return NodeView(root, WithLibrary(library, mode, patience_s))


async def test_the_child_reads_a_real_library(tmp_path: Path, library: Path) -> None:
    reading = await read_gpus(view(tmp_path, library))
    assert (reading.source, reading.driver_version, len(reading.gpus)) == ("nvml", "590.44.01", 2)
    sound, lost = reading.gpus
    assert (sound.address, sound.name, sound.errors) == ("0000:18:00.0", "NVIDIA H100 80GB HBM3", {})
    rows = sound.remapped
    assert (rows.corrected, rows.uncorrected, rows.pending, rows.failure) == (1, 2, True, False)
    assert (sound.temperature.memory_c, sound.temperature.slowdown_t_limit_c) == (37, -2)
    assert sound.clocks.held_s == {ClocksEvent.HW_THERMAL: 5.0}
    assert sound.nvlinks == (NvLink(link=0, active=True),)
    config = sound.config
    assert (config.inforom_valid, config.memory_allocated_mib, config.processes) == (False, 300.0, 1)
    assert (lost.lost, lost.address) == ("GPU is lost", "0000:2a:00.0")


async def test_a_library_that_supports_nothing_still_gives_a_reading(tmp_path: Path, library: Path) -> None:
    reading = await read_gpus(view(tmp_path, library, "nothing"))
    assert isinstance(reading, GpuReading)
    assert reading.gpus == (Gpu(index=0, nvlinks=()),)


async def test_a_library_that_hangs_is_unknown(tmp_path: Path, library: Path) -> None:
    with pytest.raises(CannotTell) as caught:
        await read_gpus(view(tmp_path, library, "hang", patience_s=1.0))
    assert caught.value.reason == "DriverHung"


async def test_a_library_that_crashes_is_unknown(tmp_path: Path, library: Path) -> None:
    with pytest.raises(CannotTell, match=r"\bSIGABRT\b") as caught:
        await read_gpus(view(tmp_path, library, "crash"))
    assert caught.value.reason == "NvmlCrashed"


async def test_a_library_whose_driver_is_not_loaded_is_unknown(tmp_path: Path, library: Path) -> None:
    with pytest.raises(CannotTell) as caught:
        await read_gpus(view(tmp_path, library, "refuse"))
    assert caught.value.reason == "DriverNotLoaded"


async def test_a_library_that_is_no_library_is_missing(tmp_path: Path) -> None:
    folder = tmp_path / "lib"
    folder.mkdir()
    (folder / "libnvidia-ml.so.1").write_text("")  # what a driver that was removed while it was used leaves behind
    with pytest.raises(ToolMissing):
        await read_gpus(view(tmp_path, folder))
