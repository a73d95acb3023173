"""When a node counts as idle: a real kubelet's socket, /proc as it is laid out, and a clock that the test sets."""

import asyncio
import re
import tempfile
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

import grpc
import pytest
from tests.agent.idle.test_device_users import OWN, Node
from tests.agent.idle.test_vendor_tools import Tools, reading
from tests.agent.kubelet_socket import Kubelet, devices, pod
from tests.loop_time import LoopTime

from muster_agent.clock import AgentClock
from muster_agent.idle.idle_detector import (
    DRIVER_AGAIN_S,
    DRIVER_S,
    FORGIVEN_S,
    FORGOTTEN_S,
    LOOK_S,
    UNKNOWN,
    IdleDetector,
    KubeletLost,
)
from muster_agent.idle.occupancy import Occupancy, RunScope
from muster_agent.idle.pod_resources import PodResources
from muster_checks.base.commands import Output
from muster_checks.base.declaration import NodeView

PATIENT_S = 60.0
BEGUN = 1_750_000_000.0
GPU = pod("train-0", devices("nvidia.com/gpu", "GPU-1"))
HOLDER = ("team-a/train-0", "nvidia.com/gpu")
PROCESS = ("python3", "5000", "/dev/nvidia0")


def names(reason: str, facts: Sequence[str]) -> bool:
    """It says who is at work, and has all these facts."""
    return not reason.startswith(UNKNOWN) and all(fact in reason for fact in facts)


class World:
    """A node with one GPU. ``now``: seconds since the test began; ``changes``: what was told of the node, in order."""

    def __init__(self, root: Path, socket: Path, tools: Tools) -> None:
        self.node = Node(root)
        self.node.device("nvidia0")
        self.tools = tools
        self.view = NodeView(root, commands=tools)
        device = root / "sys/bus/pci/devices/0000:0b:00.0"
        device.mkdir(parents=True)
        for name, value in {"vendor": "0x10de", "device": "0x2330", "class": "0x030200"}.items():
            (device / name).write_text(value)
        self.socket = socket
        self.now = 0.0
        self.changes: list[bool] = []
        self._looked = asyncio.Event()
        self._look_again = asyncio.Event()
        self.idleness = self.agent()

    def agent(
        self, since: float = 0.0, answer_s: float = PATIENT_S, kubelet: PodResources | None = None
    ) -> IdleDetector:
        made = IdleDetector(
            self.view,
            kubelet or PodResources(self.socket, answer_s=answer_s, sleep=self._sleep),
            since=since,
            on_change=lambda: self.changes.append(made.idle_since is not None),
            clock=AgentClock(monotonic=lambda: self.now, wall=lambda: BEGUN + self.now, sleep=self._sleep),
        )
        self.idleness = made
        return made

    async def _sleep(self, seconds: float) -> None:
        if seconds != LOOK_S:  # only run() rests that long
            return
        self._looked.set()
        await self._look_again.wait()
        self._look_again.clear()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """run() has looked once."""
        task = asyncio.create_task(self.idleness.run())
        try:
            await self._looked.wait()
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def passes(self, seconds: float) -> None:
        """run() looks once, ``seconds`` later."""
        self.now += seconds
        self._looked.clear()
        self._look_again.set()
        await self._looked.wait()


@pytest.fixture
def socket() -> Iterator[Path]:
    # not under tmp_path: the name of a Unix socket has 107 bytes at most
    with tempfile.TemporaryDirectory(prefix="kubelet-") as folder:
        yield Path(folder) / "kubelet.sock"


@pytest.fixture
def kubelet(socket: Path) -> Iterator[Kubelet]:
    with Kubelet().listens(socket) as kubelet:
        yield kubelet


@pytest.fixture
def first(socket: Path) -> Iterator[ExitStack]:
    """A kubelet that ends with ``close()``."""
    with ExitStack() as kubelet:
        kubelet.enter_context(Kubelet().listens(socket))
        yield kubelet


@pytest.fixture
async def world(tmp_path: Path, socket: Path) -> AsyncIterator[World]:
    world = World(tmp_path, socket, Tools(nvml=[reading(4.0)]))
    yield world
    world.idleness.close()
    await asyncio.sleep(0)


def test_it_is_what_the_agent_asks_of_an_occupancy(tmp_path: Path) -> None:
    occupancy: Occupancy = IdleDetector(NodeView(tmp_path), PodResources(tmp_path / "none"))
    assert occupancy.idle_since is None
    assert occupancy.busy.startswith(UNKNOWN)


# --- one look


async def test_a_pod_with_a_gpu_makes_the_node_busy(world: World, kubelet: Kubelet) -> None:
    kubelet.answer = GPU
    reason = await world.idleness.find_work()
    assert names(reason, HOLDER)
    assert (world.idleness.busy, world.idleness.idle_since) == (reason, None)


async def test_more_pods_are_counted(world: World, kubelet: Kubelet) -> None:
    kubelet.answer = GPU + pod("train-1", devices("nvidia.com/gpu", "GPU-2"))
    assert names(await world.idleness.find_work(), (*HOLDER, " 1 "))


async def test_a_process_beside_all_pods_makes_the_node_busy(world: World, kubelet: Kubelet) -> None:
    world.node.process(5000, "python3", "/dev/nvidia0")
    assert names(await world.idleness.find_work(), PROCESS)


async def test_memory_in_use_makes_the_node_busy(world: World, kubelet: Kubelet) -> None:
    world.tools._answers["nvml"] = [reading(70_000.0)]
    assert names(await world.idleness.find_work(), ("70000 MiB", "GPU 0"))


async def test_a_node_that_nobody_uses_is_idle(world: World, kubelet: Kubelet) -> None:
    assert await world.idleness.find_work() == ""
    assert (world.idleness.busy, world.idleness.idle_since) == ("", BEGUN)


async def test_without_a_kubelet_processes_decide(world: World) -> None:
    assert await world.idleness.find_work() == ""
    world.node.process(5000, "python3", "/dev/nvidia0")
    assert names(await world.idleness.find_work(), PROCESS)


async def test_a_kubelet_that_does_not_answer_leaves_the_node_in_use(world: World, kubelet: Kubelet) -> None:
    go_on = threading.Event()

    def hang(context: grpc.ServicerContext) -> bytes:
        go_on.wait(PATIENT_S)
        return b""

    kubelet.answer = hang
    for look in (world.agent(answer_s=0.2).find_work, world.idleness.find_foreign_work):
        reason = await look()
        assert reason.startswith(UNKNOWN)
        assert "0.2 s" in reason
    go_on.set()


async def test_a_process_that_is_seen_outranks_a_kubelet_that_does_not_tell(world: World, kubelet: Kubelet) -> None:
    kubelet.answer = b"\xff"
    world.node.process(5000, "python3", "/dev/nvidia0")
    assert names(await world.idleness.find_work(), PROCESS)


async def test_who_sees_only_a_container_and_no_kubelet_cannot_tell(world: World) -> None:
    (world.view.root / "proc/2/stat").unlink()
    reason = await world.idleness.find_work()
    assert reason.startswith(UNKNOWN)
    assert "hostPID" in reason


async def test_the_kubelet_is_enough_for_an_agent_that_sees_only_its_container(world: World, kubelet: Kubelet) -> None:
    (world.view.root / "proc/2/stat").unlink()
    assert await world.idleness.find_work() == ""


async def test_a_node_without_accelerators_is_idle_whatever_runs(world: World) -> None:
    (world.view.root / "dev/nvidia0").unlink()
    (world.view.root / "proc/2/stat").unlink()
    assert await world.idleness.find_work() == ""
    assert world.tools.asked == []


async def test_a_broken_look_is_no_idle_node(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fails() -> None:
        raise RuntimeError("boom")

    monkeypatch.setattr(world.idleness._kubelet, "holders", fails)
    assert await world.idleness.find_work() == f"{UNKNOWN}boom"
    assert await world.idleness.find_foreign_work() == f"{UNKNOWN}boom"


async def test_a_driver_that_hangs_is_not_waited_for(world: World, kubelet: Kubelet, loop_time: LoopTime) -> None:
    asked, never = asyncio.Event(), asyncio.Event()

    async def hang(argv: Sequence[str], *, timeout_s: float, **_: object) -> Output:
        asked.set()
        await never.wait()
        return Output(argv=tuple(argv))

    world.tools.run = hang  # type: ignore[method-assign,assignment]
    look = asyncio.create_task(world.idleness.find_work())
    await asked.wait()
    await loop_time.passes(DRIVER_S)
    assert (await look).startswith(UNKNOWN)
    never.set()


# --- beside a test of ours


async def test_what_a_test_does_itself_is_no_work(world: World, kubelet: Kubelet) -> None:
    assert await world.idleness.find_work() == ""
    world.node.process(900, "nv-hostengine", "/dev/nvidia0")
    world.node.process(5000, "nvvs", "/dev/nvidia0", parent=900)
    world.node.process(5001, "python3", "/dev/nvidia0", parent=OWN)
    world.tools._answers["nvml"] = [reading(70_000.0)]
    assert await world.idleness.find_foreign_work() == ""


async def test_pods_that_wait_are_no_work_to_who_asks_beside_them_and_others_are(
    world: World, kubelet: Kubelet
) -> None:
    kubelet.answer = GPU
    for look in (world.idleness.find_work, world.idleness.find_foreign_work):
        assert await look(RunScope("team-a/train-")) == ""
        assert names(await look(RunScope("team-a/serve-")), HOLDER)
    assert world.idleness.idle_since is None, "the node is in use all the same"
    kubelet.answer = GPU + pod("serve-0", devices("nvidia.com/gpu", "GPU-2"))
    assert names(await world.idleness.find_work(RunScope("team-a/train-")), ("team-a/serve-0", "nvidia.com/gpu"))
    kubelet.answer = GPU
    world.node.process(5000, "python3", "/dev/nvidia0")
    assert names(await world.idleness.find_work(RunScope("team-a/train-")), PROCESS), "what uses a device does not wait"


@pytest.mark.parametrize("comes", ["a pod", "a process"])
async def test_work_that_comes_is_seen_beside_a_test(world: World, kubelet: Kubelet, comes: str) -> None:
    assert await world.idleness.find_work() == ""
    if comes == "a pod":
        kubelet.answer = GPU
    else:
        world.node.process(5000, "python3", "/dev/nvidia0")
    assert await world.idleness.find_foreign_work() != ""
    assert world.idleness.idle_since == BEGUN


async def test_somebody_else_s_diagnostics_refuse_a_test_and_leave_the_node_idle(
    world: World, kubelet: Kubelet
) -> None:
    world.node.process(900, "nv-hostengine")
    world.node.process(5000, "nvvs", "/dev/nvidia0", parent=900)
    assert names(await world.idleness.find_work(), ("DCGM", "nvvs", "5000"))
    assert world.idleness.idle_since == BEGUN


# --- as time goes by


async def test_a_job_that_comes_and_goes_is_reported(world: World, kubelet: Kubelet) -> None:
    async with world.running():
        assert world.changes == [True]
        kubelet.answer = GPU
        await world.passes(10)
        assert world.changes == [True, False]
        await world.passes(10)
        kubelet.answer = b""
        await world.passes(10)
        assert world.changes == [True, False, True]
        assert world.idleness.idle_since == BEGUN + 30


async def test_looking_again_changes_nothing(world: World, kubelet: Kubelet) -> None:
    async with world.running():
        for _ in range(5):
            await world.passes(10)
        assert world.changes == [True]
        assert world.idleness.idle_since == BEGUN


async def test_no_tool_is_started_without_a_heavy_check(world: World, kubelet: Kubelet) -> None:
    async with world.running():
        await world.passes(10)
    assert world.tools.asked == []


async def test_a_process_is_reported_without_a_heavy_check(world: World, kubelet: Kubelet) -> None:
    async with world.running():
        folder = world.node.process(5000, "python3", "/dev/nvidia0")
        await world.passes(1000)
        assert world.changes == [True, False]
        (folder / "fd/2").unlink()
        await world.passes(1000)
        assert world.changes == [True, False, True]


async def test_a_kubelet_that_is_started_anew_changes_nothing(world: World, first: ExitStack) -> None:
    async with world.running():
        first.close()
        await world.passes(FORGIVEN_S / 2)
        assert (await world.idleness.find_work()).startswith(UNKNOWN)  # no test is let in, though
        with Kubelet().listens(world.socket):
            await world.passes(10)
            assert world.changes == [True]
            assert world.idleness.idle_since == BEGUN


@pytest.mark.parametrize(
    ("away_s", "since"), [(FORGOTTEN_S / 2, BEGUN), (FORGOTTEN_S * 2, BEGUN + 2 * FORGOTTEN_S + 10)]
)
async def test_a_kubelet_that_stays_away_is_reported(
    world: World, first: ExitStack, away_s: float, since: float
) -> None:
    async with world.running():
        first.close()
        await world.passes(away_s)
        assert world.changes == [True, False]
        assert world.idleness.busy.startswith(UNKNOWN)
        with Kubelet().listens(world.socket):
            await world.passes(10)
            assert world.changes == [True, False, True]
            assert world.idleness.idle_since == since


async def test_a_job_seen_after_a_silence_begins_a_new_rest(world: World, first: ExitStack) -> None:
    async with world.running():
        first.close()
        await world.passes(FORGIVEN_S)
        with Kubelet(GPU).listens(world.socket) as kubelet:
            await world.passes(10)
            kubelet.answer = b""
            await world.passes(10)
            assert world.idleness.idle_since == BEGUN + FORGIVEN_S + 20


async def test_memory_that_a_look_found_in_use_is_asked_after_now_and_then(world: World, kubelet: Kubelet) -> None:
    world.tools._answers["nvml"] = [reading(70_000.0)]
    async with world.running():
        assert await world.idleness.find_work()
        assert world.changes == [True, False]
        asked = len(world.tools.asked)
        await world.passes(10)
        assert len(world.tools.asked) == asked
        assert world.changes == [True, False]
        world.tools._answers["nvml"] = [reading(4.0)]
        await world.passes(DRIVER_AGAIN_S)
        assert world.changes == [True, False, True]


async def test_each_look_asks_the_driver_again(world: World, kubelet: Kubelet) -> None:
    world.tools._answers["nvml"] = [reading(70_000.0)]
    assert await world.idleness.find_work()
    world.tools._answers["nvml"] = [reading(4.0)]
    assert await world.idleness.find_work() == ""
    assert world.idleness.idle_since == BEGUN


async def test_a_failing_look_does_not_end_the_looking(
    world: World, kubelet: Kubelet, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fails() -> None:
        raise RuntimeError("boom")

    async with world.running():
        with monkeypatch.context() as patch:
            patch.setattr(world.idleness._kubelet, "holders", fails)
            await world.passes(FORGIVEN_S)
            assert world.idleness.busy == f"{UNKNOWN}boom"
        await world.passes(10)
        assert world.idleness.busy == ""


# --- over a restart


async def test_an_idle_node_stays_idle_over_a_restart(world: World, kubelet: Kubelet) -> None:
    idleness = world.agent(since=BEGUN - 5000)
    assert (idleness.idle_since, idleness.busy) == (BEGUN - 5000, "")
    assert await idleness.find_work() == ""
    assert idleness.idle_since == BEGUN - 5000
    assert world.changes == []


async def test_a_job_that_began_during_a_restart_is_reported(world: World, kubelet: Kubelet) -> None:
    kubelet.answer = GPU
    await world.agent(since=BEGUN - 5000).find_work()
    assert world.changes == [False]


@pytest.mark.parametrize("since", [BEGUN - 2000, BEGUN + 1000])
async def test_what_was_before_the_boot_or_lies_ahead_is_not_believed(
    world: World, kubelet: Kubelet, since: float
) -> None:
    (world.view.root / "proc/stat").write_text(f"cpu 1 2 3\nbtime {BEGUN - 1000:.0f}\nprocesses 4\n")
    idleness = world.agent(since=since)
    assert idleness.idle_since is None
    await idleness.find_work()
    assert idleness.idle_since == BEGUN


async def test_a_connection_opened_in_time_is_what_is_asked(world: World, kubelet: Kubelet) -> None:
    opened = PodResources(world.socket, answer_s=PATIENT_S)
    opened.open_now()
    world.socket.unlink()
    idleness = world.agent(kubelet=opened)
    assert await idleness.find_work() == ""
    idleness.close()


async def test_an_agent_that_may_not_open_the_kubelets_socket_again_ends_to_be_started_anew(world: World) -> None:
    opened = PodResources(world.socket)
    opened.lost = True
    with pytest.raises(KubeletLost, match=re.escape(str(world.socket))):
        await world.agent(kubelet=opened).run()
