"""What the vendors' tools say of who uses the accelerators."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import pytest
from tests.checks.graphcore.sample import sample

from muster_agent.idle.vendor_tools import attached_applications, query_vendor_tools
from muster_checks.base.commands import Output
from muster_checks.base.declaration import NodeView
from muster_checks.nvidia.gpu import Gpu, GpuReading, NvmlReply

MACHINE = Path(__file__).parents[3]
IPUS = {"IPUOF_VIPU_API_HOST": "10.1.5.1"}

_ATTACHED = sample("gc_monitor_no_card_info.txt")
GC_MONITOR, OTHERS = _ATTACHED.split(b"\n\n")
DEVICES = sample("gc_monitor.txt")


class Tools:
    """``answers``: what each program prints, one run after another; the last again and again."""

    def __init__(self, **answers: Sequence[bytes]) -> None:
        self._answers = {name.replace("_", "-"): list(texts) for name, texts in answers.items()}
        self.asked: list[str] = []

    async def run(
        self,
        argv: Sequence[str],
        *,
        timeout_s: float,
        environment: Mapping[str, str] | None = None,
        limit_bytes: int = 0,
    ) -> Output:
        name = "nvml" if "muster_checks.nvidia.nvml_child" in argv else argv[0]
        self.asked.append(name)
        texts = self._answers.get(name)
        if not texts:
            return Output(argv=tuple(argv), missing="not found")
        return Output(argv=tuple(argv), exit_code=0, stdout=texts.pop(0) if len(texts) > 1 else texts[0])

    def which(self, name: str) -> str | None:
        return name


def reading(*used_mib: float | None) -> bytes:
    gpus = tuple(
        Gpu(index=index, address=f"0000:{index}b:00.0", memory_used_mib=used) for index, used in enumerate(used_mib)
    )
    return msgspec.json.encode(NvmlReply(reading=GpuReading(source="nvml", gpus=gpus)))


async def no_wait(seconds: float) -> None:
    pass


def node(root: Path, tools: Tools) -> NodeView:
    device = root / "sys/bus/pci/devices/0000:0b:00.0"
    device.mkdir(parents=True)
    for name, value in {"vendor": "0x10de", "device": "0x2330", "class": "0x030200"}.items():
        (device / name).write_text(value)
    (root / "sys/module/nvidia").mkdir(parents=True)
    return NodeView(root, commands=tools)


async def test_memory_in_use_is_work(tmp_path: Path) -> None:
    view = node(tmp_path, Tools(nvml=[reading(512.0, 70_000.0)]))
    busy = await query_vendor_tools(view, environment={}, sleep=no_wait)
    assert "70000 MiB" in busy
    assert "GPU 1" in busy
    assert "GPU 0" not in busy


async def test_what_the_driver_keeps_for_itself_is_no_work(tmp_path: Path) -> None:
    assert (
        await query_vendor_tools(node(tmp_path, Tools(nvml=[reading(1000.0, None)])), environment={}, sleep=no_wait)
        == ""
    )


async def test_memory_that_a_process_has_left_a_moment_ago_is_no_work(tmp_path: Path) -> None:
    tools = Tools(nvml=[reading(70_000.0), reading(4.0)])
    assert await query_vendor_tools(node(tmp_path, tools), environment={}, sleep=no_wait) == ""
    assert tools.asked == ["nvml", "nvml"]


async def test_a_driver_that_does_not_answer_reports_no_work(tmp_path: Path) -> None:
    assert await query_vendor_tools(node(tmp_path, Tools(nvml=[b"Segmentation"])), environment={}, sleep=no_wait) == ""


async def test_a_node_without_accelerators_is_not_asked(tmp_path: Path) -> None:
    tools = Tools()
    assert await query_vendor_tools(NodeView(tmp_path, commands=tools), environment={}, sleep=no_wait) == ""
    assert tools.asked == []


async def test_an_application_on_ipus_is_work(tmp_path: Path) -> None:
    view = NodeView(tmp_path, commands=Tools(gc_monitor=[DEVICES + GC_MONITOR]))
    busy = await query_vendor_tools(view, environment=IPUS, sleep=no_wait)
    assert "train (PID 40172)" in busy


async def test_an_ipu_host_without_gc_monitor_reports_no_work(tmp_path: Path) -> None:
    assert await query_vendor_tools(NodeView(tmp_path, commands=Tools()), environment=IPUS, sleep=no_wait) == ""


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (GC_MONITOR, ["train (PID 40172)"]),
        (OTHERS, ["ipu-host-4"]),
        (GC_MONITOR + b"\n" + OTHERS, ["train (PID 40172)", "ipu-host-4"]),
        (DEVICES, []),
        (GC_MONITOR + DEVICES, ["train (PID 40172)"]),
        (b"Segmentation fault (core dumped)\n", []),
        (b"", []),
        (b"|ID|\n|1|\n", []),
        (b"|attached|\n|ID|\n|1|2|\n|x|\n", []),
        (b"\xff|\x00", []),
    ],
)
def test_attached_applications_are_in_tables_that_say_so(text: bytes, found: list[str]) -> None:
    assert attached_applications(text) == found
