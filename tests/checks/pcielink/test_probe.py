"""The whole check on a node: what it reads, what it does without a driver, and on a recorded /sys."""

import asyncio
import io
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import pytest
from tests.checks.bad_input import TEXTS
from tests.checks.pcielink.machines import CX7, ROOT_PORT, Machine, eight_gpus, one_gpu

from muster_checks.base.commands import OUTPUT_LIMIT_BYTES, Output
from muster_checks.base.declaration import NodeView
from muster_checks.base.execution import run_probe, run_recorded
from muster_checks.base.vocabulary import Verdict
from muster_checks.nvidia.gpu import Gpu, GpuClocks, GpuReading, NvmlReply, Pcie
from muster_checks.nvidia.probe import NVML_CHILD
from muster_checks.pcielink import PCIELINK, PcielinkParameters
from muster_checks.pcielink.probe import read_link_gpus
from muster_checks.pcielink.sysfs import read_node
from muster_checks.testing.recorded import node

AT_ONCE = PcielinkParameters(first_interval_s=0.0)


def _nvml(*gpus: Gpu) -> dict[str, bytes]:
    return {" ".join(NVML_CHILD): msgspec.json.encode(NvmlReply(reading=GpuReading(source="nvml", gpus=gpus)))}


async def test_a_sound_node_passes_though_no_driver_answers(tmp_path: Path) -> None:
    eight_gpus(tmp_path)
    result = await run_probe(PCIELINK, node(tmp_path), AT_ONCE)
    assert (result.verdict, len(result.findings)) == (Verdict.PASS, 13)


async def test_what_the_driver_says_is_used_where_it_answers(tmp_path: Path) -> None:
    one_gpu(tmp_path)
    slow = Gpu(
        index=0,
        address="0000:04:00.0",
        clocks=GpuClocks(events=()),
        pcie=Pcie(generation=1, generation_max=5, replays=7),
    )
    result = await run_probe(PCIELINK, node(tmp_path, _nvml(slow)), AT_ONCE)
    assert (result.verdict, result.reason) == (Verdict.WARN, "LinkSpeed")


class Hanging:
    """A driver whose callers hang."""

    async def run(
        self,
        argv: Sequence[str],
        *,
        timeout_s: float,
        environment: Mapping[str, str] | None = None,
        limit_bytes: int = OUTPUT_LIMIT_BYTES,
    ) -> Output:
        await asyncio.Event().wait()
        raise AssertionError  # pragma: no cover - never reached

    def which(self, name: str) -> str | None:
        return None


async def test_a_driver_that_hangs_holds_nothing_up(tmp_path: Path) -> None:
    one_gpu(tmp_path)
    view = NodeView(tmp_path, Hanging())
    assert await read_link_gpus(view, read_node(view), timeout_s=0.01) == {}


@pytest.mark.parametrize("answer", [b"", b"Segmentation fault", b"{}", Output(argv=("x",), exit_code=-11)])
async def test_a_driver_that_answers_nonsense_holds_nothing_up(tmp_path: Path, answer: "bytes | Output") -> None:
    one_gpu(tmp_path)
    result = await run_probe(PCIELINK, node(tmp_path, {" ".join(NVML_CHILD): answer}), AT_ONCE)
    assert result.verdict is Verdict.PASS


async def test_a_node_without_such_devices_is_skipped(tmp_path: Path) -> None:
    result = await run_probe(PCIELINK, node(tmp_path), AT_ONCE)
    assert (result.verdict, result.reason) == (Verdict.SKIP, "NoDevice")


async def test_a_virtual_machine_without_links_is_skipped(tmp_path: Path) -> None:
    Machine(tmp_path).add("0000:00:03.0", CX7, link=None, net="eth0")
    result = await run_probe(PCIELINK, node(tmp_path), AT_ONCE)
    assert (result.verdict, result.reason) == (Verdict.SKIP, "NoLink")


async def test_the_last_device_that_vanishes_is_still_told(tmp_path: Path) -> None:
    now = 1000.0
    machine = Machine(tmp_path).add("0000:00:01.0", ROOT_PORT).add("0000:01:00.0", CX7, "0000:00:01.0", net="eth0")
    view = node(tmp_path, clock=lambda: now)
    assert (await run_probe(PCIELINK, view, AT_ONCE)).verdict is Verdict.PASS
    machine.remove("0000:01:00.0")
    now += 300.0
    result = await run_probe(PCIELINK, view, AT_ONCE)
    assert (result.verdict, result.reason) == (Verdict.FAIL, "DeviceGone")


async def test_this_machine_has_an_answer() -> None:
    result = await run_probe(PCIELINK, NodeView(), AT_ONCE)
    assert result.verdict in (Verdict.PASS, Verdict.WARN, Verdict.SKIP)
    assert result.reason != "ProbeFailed"


def _packed(root: Path) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        archive.add(root / "sys", arcname="sys")
    return out.getvalue()


def test_a_recorded_tree_is_judged(tmp_path: Path) -> None:
    machine = eight_gpus(tmp_path)
    machine.set("0000:04:00.0", current_link_width=8)
    result = run_recorded(PCIELINK, _packed(tmp_path), AT_ONCE)
    assert result is not None
    assert (result.verdict, result.reason, len(result.findings)) == (Verdict.FAIL, "LinkWidth", 13)


def test_a_recorded_tree_without_links_is_skipped(tmp_path: Path) -> None:
    Machine(tmp_path).add("0000:00:03.0", CX7, link=None, net="eth0")
    result = run_recorded(PCIELINK, _packed(tmp_path), AT_ONCE)
    assert result is not None
    assert result.verdict is Verdict.SKIP


def test_a_tree_of_another_kind_is_not_ours(tmp_path: Path) -> None:
    (tmp_path / "sys/class/net").mkdir(parents=True)
    assert run_recorded(PCIELINK, _packed(tmp_path), AT_ONCE) is None


@pytest.mark.parametrize("text", TEXTS)
def test_text_of_another_kind_is_not_ours(text: bytes) -> None:
    assert run_recorded(PCIELINK, text, AT_ONCE) is None
