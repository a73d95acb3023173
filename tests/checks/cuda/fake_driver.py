"""The CUDA driver of libcuda.c, compiled when first asked for, and a node whose children load it."""

import atexit
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

import pytest
from tests.machine import require

from muster_checks.base.commands import OUTPUT_LIMIT_BYTES, LocalCommands, Output
from muster_checks.base.declaration import NodeView
from muster_checks.testing.recorded import Answer, RecordedCommands

SOURCE = Path(__file__).with_name("libcuda.c")


def driver() -> Path:
    """Its path. Skips (in CI: fails) where it cannot be compiled."""
    require("gcc", "/usr/include/stdio.h")
    return _build()


@cache
def _build() -> Path:
    folder = tempfile.mkdtemp(prefix="muster-libcuda-")
    atexit.register(shutil.rmtree, folder)
    library = Path(folder) / "libcuda.so.1"
    subprocess.run(["gcc", "-shared", "-fPIC", "-O2", "-Wall", "-Wextra", "-Werror", "-o", library, SOURCE], check=True)
    return library


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Path:
    """Its path; children find it under the name of the real one."""
    built = driver()
    monkeypatch.setenv("LD_LIBRARY_PATH", str(built.parent))
    for name in [name for name in os.environ if name.startswith(("FAKE_", "CUDA_"))]:
        monkeypatch.delenv(name)
    return built


class Commands(RecordedCommands):
    """Children that work on GPUs run for real, everything else is recorded. Each has the settings of the driver."""

    def __init__(self, answers: Mapping[str, Answer], settings: Mapping[str, str]) -> None:
        super().__init__(answers)
        self.settings = dict(settings)

    async def run(
        self,
        argv: Sequence[str],
        *,
        timeout_s: float,
        environment: Mapping[str, str] | None = None,
        limit_bytes: int = OUTPUT_LIMIT_BYTES,
    ) -> Output:
        if not any(word.startswith("muster_checks.cuda.") for word in argv):
            return await super().run(argv, timeout_s=timeout_s, environment=environment, limit_bytes=limit_bytes)
        self.calls.append((tuple(argv), timeout_s))
        return await LocalCommands().run(
            argv, timeout_s=timeout_s, environment={**self.settings, **(environment or {})}, limit_bytes=limit_bytes
        )


def address(index: int) -> str:
    """As the driver numbers its GPUs."""
    return f"0000:{0x18 + 0x10 * index:02x}:00.0"


def gpu_node(root: Path, count: int = 1, answers: Mapping[str, Answer] | None = None, **settings: object) -> NodeView:
    """A node with ``count`` GPUs, each on a root port of its own at PCIe 4.0 x16. ``settings``: see libcuda.c."""
    listed = root / "sys/bus/pci/devices"
    listed.mkdir(parents=True)
    for index in range(count):
        port = root / f"sys/devices/pci0000:{index:02x}/0000:{index:02x}:01.0"
        device = port / address(index)
        device.mkdir(parents=True)
        for folder in (port, device):
            (folder / "max_link_speed").write_text("16.0 GT/s PCIe\n")
            (folder / "max_link_width").write_text("16\n")
        for name, content in {"vendor": "0x10de", "device": "0x20b2", "class": "0x030200"}.items():
            (device / name).write_text(f"{content}\n")
        (device / "local_cpulist").write_text("0\n")
        (listed / address(index)).symlink_to(device)
    values = {f"FAKE_{name.upper()}": str(value) for name, value in {"count": count, **settings}.items()}
    return NodeView(root, Commands(answers or {}, values))
