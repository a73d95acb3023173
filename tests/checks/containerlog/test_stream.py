"""From lines in files to signs, over restarts, floods, and a kubelet or a folder that is not there."""

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from tests.checks.containerlog.pod_folder import ContainerFiles

from muster_checks.base.declaration import AllClear, LogOpener, NodeView, Sign, StepTotals
from muster_checks.base.execution import CannotTell
from muster_checks.base.vocabulary import MESSAGE_LIMIT_BYTES, FaultClass, Origin, Verdict
from muster_checks.containerlog import ContainerlogParameters, log_reader, stream
from muster_checks.containerlog.container_log import BACKLOG_BYTES
from muster_checks.containerlog.judge import QUIET_S
from muster_checks.containerlog.log_folder import FolderOpener
from muster_checks.containerlog.log_reader import Turn
from muster_checks.containerlog.stream import (
    PODS_EVERY_S,
    PODS_KEPT_S,
    POSITION_EVERY_S,
    ContainerLogStream,
    LogPosition,
    open_stream,
)
from muster_checks.dmesg.sources.timeline import KernelClocks

ECC = "RuntimeError: CUDA error: uncorrectable ECC error encountered"
NOW = 1_800_000_000.0
EXAMPLES = Path(__file__).parents[3] / "examples"


class Gate(FolderOpener):
    """A disk that does not answer: opening the file ``name`` takes until ``open_gate``."""

    def __init__(self, folder: Path, name: str) -> None:
        super().__init__(folder)
        self._name = name
        self.reached, self.open_gate = threading.Event(), threading.Event()

    def open(self, parts: Sequence[str], /) -> int:
        if parts[-1:] == (self._name,):
            self.reached.set()
            assert self.open_gate.wait(60)
        return super().open(parts)


@dataclass(eq=False)
class Node:
    """``pods``: what the kubelet answers. Time passes only by ``now``."""

    root: Path
    pods: frozenset[str] | CannotTell = frozenset({"ml/train-0"})
    now: float = NOW
    uptime: float = 100_000.0
    asked: int = 0
    events: list[Sign | AllClear] = field(default_factory=list)
    arrived: asyncio.Event = field(default_factory=asyncio.Event)
    stream: Any = None
    gate: "Gate | None" = None
    _reading: Any = None

    def __post_init__(self) -> None:
        self.folder = self.root / "pods"
        self.folder.mkdir()
        self.set_boot("boot-1")

    def set_boot(self, boot_id: str) -> None:
        path = self.root / "proc/sys/kernel/random/boot_id"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(boot_id)

    async def accelerator_pods(self) -> frozenset[str]:
        self.asked += 1
        if isinstance(self.pods, CannotTell):
            raise self.pods
        return self.pods

    def opener(self, folder: Path, /) -> LogOpener:
        return self.gate or FolderOpener(folder)

    def start(self, saved: bytes | None = None, **parameters: Any) -> ContainerLogStream:
        values = ContainerlogParameters.model_validate({"folder": self.folder, "cpu_share": 1.0, **parameters})
        clocks = KernelClocks(realtime=lambda: self.now, monotonic=lambda: self.uptime)
        self.stream = open_stream(NodeView(self.root, pod_logs=self), values, saved, clocks=clocks, every_s=0.01)
        self._reading = asyncio.create_task(self._read())
        return self.stream  # type: ignore[no-any-return]

    async def _read(self) -> None:
        async for batch in self.stream.events():
            self.events += batch
            self.arrived.set()

    async def read(self) -> list[Sign | AllClear]:
        """What is new, once everything has been read and judged."""
        before = len(self.events)
        await self.stream.drain()
        return self.events[before:]

    async def pass_time(self, seconds: float) -> list[Sign | AllClear]:
        self.now += seconds
        self.uptime += seconds
        return await self.read()

    async def stop(self) -> bytes:
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)
        return self.stream.position() if self.stream is not None else b""  # type: ignore[no-any-return]


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    node = Node(tmp_path)
    yield node
    await node.stop()


@pytest.fixture
def files(node: Node) -> ContainerFiles:
    return ContainerFiles(node.folder, now=NOW - 10)


async def test_a_line_is_a_warning_on_its_pod(node: Node, files: ContainerFiles) -> None:
    node.start(show_lines=True)
    assert await node.read() == []
    assert node.stream.caught_up
    files.print("step 1", ECC)
    [sign] = await node.read()
    assert isinstance(sign, Sign)
    assert (sign.component, sign.reason) == ("pod/ml/train-0", "CudaUncorrectableEcc")
    assert (sign.verdict, sign.fault_class) == (Verdict.WARN, FaultClass.RESET)
    assert (sign.origin, sign.at) == (Origin.USER, NOW - 9)
    assert "ml/train-0" in sign.line
    assert sign.message == ECC
    assert ECC in sign.line


async def test_step_times_are_read_if_the_configuration_says_so(node: Node, files: ContainerFiles) -> None:
    files.print('muster_step{rank="3",step="7",seconds="0.5"}', ECC)
    node.start(step_times=True)
    [sign] = await node.read()  # of the other line: a step time is no finding
    assert isinstance(sign, Sign)
    assert sign.reason == "CudaUncorrectableEcc"
    files.print('muster_step{rank="3",step="8",seconds="0.25"}', 'muster_step{rank="3",step="9",seconds="nan"}')
    assert await node.read() == []
    assert list(node.stream.step_times()) == [StepTotals("ml", "train-0", "train", 3, "", 9, 0.75)]
    assert node.stream.counts()["steps_malformed"] == 1
    node.pods = frozenset()
    await node.pass_time(2 * PODS_KEPT_S)
    assert list(node.stream.step_times()) == []


async def test_step_times_are_not_read_by_default(node: Node, files: ContainerFiles) -> None:
    files.print('muster_step{rank="3",step="7",seconds="0.5"}')
    node.start()
    assert await node.read() == []
    assert list(node.stream.step_times()) == []


async def test_a_file_of_a_job_is_read_by_way_of_the_log_of_a_container_that_prints_it(
    node: Node, files: ContainerFiles, tmp_path: Path
) -> None:
    """With the command of examples/step-times-file.yaml, and its output in the form of the container runtime."""
    job = yaml.safe_load((EXAMPLES / "step-times-file.yaml").read_text())
    [copier] = job["spec"]["template"]["spec"]["initContainers"]
    shell, flag, script = copier["command"]
    times = tmp_path / "times"
    copying = await asyncio.create_subprocess_exec(
        shell, flag, script.replace("/steps/times", str(times)), stdout=asyncio.subprocess.PIPE
    )
    assert copying.stdout is not None
    try:
        node.start(step_times=True)
        for step in range(3):
            with times.open("a") as file:
                file.write(f'muster_step{{rank="0",step="{step}",seconds="2",job="llm"}}\n')
            files.print((await copying.stdout.readline()).decode().rstrip("\n"))
        await node.read()
    finally:
        copying.kill()
        await copying.wait()
    assert list(node.stream.step_times()) == [StepTotals("ml", "train-0", "llm", 0, "", 3, 6.0)]


async def test_text_of_a_tenant_is_bounded_and_on_one_line(node: Node, files: ContainerFiles) -> None:
    files.print(f"{ECC} \x1b[2J\r" + "x" * 20_000)
    node.start(show_lines=True)
    [sign] = await node.read()
    assert isinstance(sign, Sign)
    assert sign.message.isprintable()
    assert len(sign.message.encode()) <= MESSAGE_LIMIT_BYTES
    assert sign.line.isprintable()
    assert len(sign.line) < 5_000


async def test_a_line_is_shown_in_the_agents_log_only(node: Node, files: ContainerFiles) -> None:
    poplar = "recoverable_runtime_error: [Recovery action: IPU_RESET] CIUERRVR.IPUSOFTERR error on IPU 0"
    files.print(f"{ECC} password=hunter2", f"{poplar} password=hunter2")
    node.start()
    signs = {event.reason: event for event in await node.read() if isinstance(event, Sign)}
    assert signs.keys() == {"CudaUncorrectableEcc", "Ciuerrvr:IPUSOFTERR"}
    for sign in signs.values():
        assert "hunter2" in sign.line
        assert "hunter2" not in sign.message
    assert "IPU_RESET" in signs["Ciuerrvr:IPUSOFTERR"].message
    assert b"hunter2" not in await node.stop()


async def test_a_pattern_fails_only_if_its_owner_says_so(node: Node, files: ContainerFiles) -> None:
    files.print("fabric manager is not running", "fan is slow", "Watchdog caught collective operation timeout: x")
    own = [
        {"name": "FabricManagerDown", "pattern": "fabric manager is not running", "class": "reboot", "verdict": "FAIL"},
        {"name": "FanSlow", "pattern": "fan is slow", "class": "replace"},
    ]
    node.start(patterns=own)
    signs = [sign for sign in await node.read() if isinstance(sign, Sign)]
    assert {sign.reason: sign.verdict for sign in signs} == {
        "FabricManagerDown": Verdict.FAIL,
        "FanSlow": Verdict.WARN,
        "NcclWatchdogTimeout": Verdict.WARN,
    }


async def test_a_flood_of_lines_is_few_signs(node: Node, files: ContainerFiles) -> None:
    node.start()
    await node.read()
    files.print(*[ECC] * 5_000)
    await node.read()
    files.print(*[ECC] * 5_000)
    await node.read()
    await node.pass_time(2.0)
    signs = [event for event in node.events if isinstance(event, Sign)]
    assert len(signs) <= 4
    assert sum(sign.count for sign in signs) == 10_000


async def test_a_warning_ends_after_its_quiet_time(node: Node, files: ContainerFiles) -> None:
    files.print(ECC)
    node.start()
    await node.read()
    assert await node.pass_time(QUIET_S - 20) == []
    [over] = await node.pass_time(30)
    assert over == AllClear(
        component="pod/ml/train-0", at=NOW - 10 + QUIET_S, how="quiet", reasons=("CudaUncorrectableEcc",)
    )


async def test_a_line_after_a_person_has_cleared_the_finding_is_a_sign(node: Node, files: ContainerFiles) -> None:
    files.print(ECC)
    node.start()
    assert len(await node.read()) == 1
    node.stream.forget("pod/ml/train-0", ("CudaUncorrectableEcc",))
    files.print(ECC)
    assert len(await node.read()) == 1


async def test_a_restart_reads_no_line_twice_and_misses_none(node: Node, files: ContainerFiles) -> None:
    files.print(ECC)
    node.start()
    assert len(await node.read()) == 1
    saved = await node.stop()
    files.now = node.now + 1
    files.print("CUDA error: invalid device ordinal")
    node.now += 60
    node.start(saved)
    assert [event.reason for event in await node.read() if isinstance(event, Sign)] == ["InvalidDeviceOrdinal"]
    # the warning of before the restart still ends
    events = await node.pass_time(QUIET_S)
    assert {reason for event in events if isinstance(event, AllClear) for reason in event.reasons} == {
        "CudaUncorrectableEcc",
        "InvalidDeviceOrdinal",
    }


async def test_a_restart_amid_a_backlog_loses_none_of_it(
    node: Node, files: ContainerFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_reader, "TURN_BYTES", 1)  # one read for each log and turn
    files.now = NOW - 3000
    files.print(ECC, *["x" * 15_000] * 100, "CUDA error: invalid device ordinal")
    ContainerFiles(node.folder, container="other", now=NOW - 5).print("a log that has been read to its end")
    node.start()
    async with asyncio.timeout(60):
        await node.arrived.wait()
    saved = await node.stop()
    assert len(node.events) == 1
    monkeypatch.undo()
    assert msgspec.json.decode(saved, type=LogPosition).until < NOW - 2900
    node.start(saved)
    assert "InvalidDeviceOrdinal" in {event.reason for event in await node.read() if isinstance(event, Sign)}


async def test_the_position_follows_a_backlog(
    node: Node, files: ContainerFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_reader, "TURN_BYTES", 1)
    files.now = NOW - 3000
    files.print(*["x" * 15_000] * 100)
    node.start()
    begin = node.stream.position()
    await until(lambda: node.stream.position() != begin)
    assert (
        msgspec.json.decode(begin, type=LogPosition).until
        < msgspec.json.decode(node.stream.position(), type=LogPosition).until
        < NOW - 2900
    )


async def test_a_restart_reads_the_logs_of_pods_that_the_kubelet_had_not_named(
    node: Node, files: ContainerFiles
) -> None:
    node.pods = CannotTell("connection refused")
    files.print(ECC)
    node.start()
    await node.pass_time(POSITION_EVERY_S + 1)
    saved = await node.stop()
    node.pods = frozenset({"ml/train-0"})
    node.start(saved)
    assert len(await node.read()) == 1


async def test_a_restart_reads_the_log_of_a_pod_that_has_just_appeared(
    node: Node, files: ContainerFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    files.print(ECC)
    ContainerFiles(node.folder, "ml_short_0f6c", now=NOW - 5).print(ECC)
    monkeypatch.setattr(node, "accelerator_pods", named_once(frozenset({"ml/train-0"})))
    node.start()
    async with asyncio.timeout(60):
        await node.arrived.wait()
    saved = await node.stop()
    monkeypatch.undo()
    node.pods = frozenset({"ml/train-0", "ml/short"})
    node.start(saved)
    assert "pod/ml/short" in {event.component for event in await node.read() if isinstance(event, Sign)}


def named_once(pods: frozenset[str]) -> Callable[[], Awaitable[frozenset[str]]]:
    """A kubelet that answers its first request only."""
    answers = [pods]

    async def accelerator_pods() -> frozenset[str]:
        if not answers:
            await asyncio.Event().wait()
        return answers.pop()

    return accelerator_pods


async def test_nothing_of_a_log_is_stored_but_the_messages_of_findings(node: Node, files: ContainerFiles) -> None:
    files.print("password=hunter2", ECC, "password=hunter3")
    node.start()
    await node.read()
    saved = await node.stop()
    assert b"hunter" not in saved
    assert len(saved) < 1000
    assert msgspec.json.decode(saved, type=LogPosition).until <= node.now


async def test_without_a_position_the_last_hour_is_read(node: Node, files: ContainerFiles) -> None:
    files.now = NOW - 3700
    files.print(ECC)
    files.now = NOW - 3500
    files.print("CUDA error: invalid device ordinal")
    node.start()
    assert [event.reason for event in await node.read() if isinstance(event, Sign)] == ["InvalidDeviceOrdinal"]


@pytest.mark.parametrize("saved", [b"", b"{}", b"garbage", b'{"boot_id": 3}'])
async def test_a_position_that_is_none_is_none(node: Node, files: ContainerFiles, saved: bytes) -> None:
    files.print(ECC)
    node.start(saved)
    assert len(await node.read()) == 1


async def test_lines_of_an_earlier_boot_do_not_count(node: Node, files: ContainerFiles) -> None:
    files.print(ECC)
    node.start()
    await node.read()
    saved = await node.stop()
    files.now = NOW + 10
    files.print(ECC)  # before the reboot
    node.set_boot("boot-2")
    node.now, node.uptime = NOW + 100, 50.0
    node.start(saved)
    assert await node.read() == []
    files.now = node.now
    files.print(ECC)
    assert len(await node.read()) == 1  # a finding of this boot


async def test_pods_without_accelerators_are_not_read(node: Node) -> None:
    ContainerFiles(node.folder, "ml_web_0f6c", now=NOW - 10).print(ECC)
    node.start()
    assert await node.read() == []


async def test_a_new_pod_is_found_as_soon_as_its_folder_is_there(node: Node, files: ContainerFiles) -> None:
    node.start()
    await node.read()
    asked = node.asked
    node.pods = frozenset({"ml/train-0", "ml/short"})
    ContainerFiles(node.folder, "ml_short_0f6c", now=NOW - 5).print(ECC)  # long before the next regular request
    async with asyncio.timeout(30):
        await node.arrived.wait()
    assert node.asked == asked + 1


async def test_the_last_lines_of_a_pod_that_has_ended_are_read(node: Node, files: ContainerFiles) -> None:
    node.start()
    await node.read()
    node.pods = frozenset()
    files.print(ECC)
    assert len(await node.read()) == 1
    await node.pass_time(PODS_KEPT_S + PODS_EVERY_S)
    files.print("CUDA error: invalid device ordinal")
    assert await node.read() == []


async def test_a_kubelet_that_is_away_for_a_moment_changes_nothing(node: Node, files: ContainerFiles) -> None:
    node.start()
    await node.read()
    node.pods = CannotTell("connection refused")
    files.print(ECC)
    assert len(await node.read()) == 1
    assert node.stream.health() == ""
    await node.pass_time(PODS_KEPT_S)
    assert "connection refused" in node.stream.health()
    node.pods = frozenset({"ml/train-0"})
    await node.pass_time(PODS_EVERY_S)
    assert node.stream.health() == ""


async def test_without_a_kubelet_the_state_is_unknown(node: Node, files: ContainerFiles) -> None:
    node.pods = CannotTell("no such socket")
    files.print(ECC)
    node.start()
    assert await node.read() == []
    assert "no such socket" in node.stream.health()
    await node.stop()
    node.start(pods="all", namespaces=["ml"])
    assert len(await node.read()) == 1
    assert node.stream.health() == ""


async def test_without_the_folder_the_state_is_unknown_until_it_is_there(node: Node) -> None:
    node.folder.rmdir()
    node.start()
    await node.read()
    assert str(node.folder) in node.stream.health()
    ContainerFiles(node.folder, now=NOW - 10).print(ECC)
    assert len(await node.read()) == 1
    assert node.stream.health() == ""


async def test_what_is_skipped_in_a_flood_is_a_warning(node: Node, files: ContainerFiles) -> None:
    node.start()
    files.print("a")
    await node.read()
    with files.current.open("r+") as file:
        file.truncate(2 * BACKLOG_BYTES)
    [sign] = await node.read()
    assert isinstance(sign, Sign)
    assert (sign.component, sign.reason, sign.verdict) == ("pod/ml/train-0", "PodLogSkipped", Verdict.WARN)


async def test_a_drain_ends_in_a_flood_that_does_not(
    node: Node, files: ContainerFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "DRAIN_S", 0.2)
    files.print(*["x" * 15_000] * 200)
    node.start(cpu_share=0.01)
    async with asyncio.timeout(60):
        await node.stream.drain()
    assert node.stream.caught_up


async def test_a_slow_disk_is_reported_and_no_line_is_lost(
    node: Node, files: ContainerFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "TURN_S", 0.05)
    monkeypatch.setattr(stream, "DRAIN_S", 3600.0)
    node.gate = Gate(node.folder, "0.log")
    files.print(ECC)
    node.start()
    draining = asyncio.create_task(node.stream.drain())
    await until(node.stream.health)
    assert not draining.done()
    node.gate.open_gate.set()
    async with asyncio.timeout(60):
        await draining
    assert [event.reason for event in node.events if isinstance(event, Sign)] == ["CudaUncorrectableEcc"]
    assert node.stream.health() == ""


async def test_an_end_amid_a_turn_leaves_no_file_open(node: Node, files: ContainerFiles) -> None:
    files.print("a line")
    second = ContainerFiles(node.folder, container="second")  # opened while the first one's file is open
    second.restart = 1
    second.print("another line")
    node.gate = Gate(node.folder, "1.log")
    node.start()
    assert await asyncio.to_thread(node.gate.reached.wait, 60)
    await node.stop()
    assert open_below(node.folder)  # the thread reads on
    node.gate.open_gate.set()
    await until(lambda: not open_below(node.folder))


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - what is waited for sets no event
            await asyncio.sleep(0)


def open_below(folder: Path) -> list[str]:
    links = (Path(f"/proc/self/fd/{number}") for number in os.listdir("/proc/self/fd"))  # noqa: PTH208 - numbers
    return [str(path) for path in (link.resolve() for link in links) if path.is_relative_to(folder)]


async def test_a_drain_of_a_stream_that_has_ended_says_so(node: Node) -> None:
    node.start()
    await node.read()
    await node.stop()
    with pytest.raises(RuntimeError):
        await node.stream.drain()


async def test_reading_takes_no_more_than_its_share_of_a_core(node: Node) -> None:
    began: list[float] = []
    four = asyncio.Event()

    async def take_turn() -> Turn:
        began.append(asyncio.get_running_loop().time())
        if len(began) == 4:
            four.set()
        return Turn(cpu_s=0.02, at_end=False)  # a flood: there is always more to read

    node.start(cpu_share=0.1)
    node.stream._take_turn = take_turn
    await four.wait()
    assert min(after - before for before, after in pairwise(began)) > 0.99 * 0.02 / 0.1
