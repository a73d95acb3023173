"""The wording of the agent's messages that people act on, asserted once per message."""

import errno
import logging
import os
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from tests.agent.idle.test_idle_detector import GPU, World
from tests.agent.idle.test_vendor_tools import Tools, reading
from tests.agent.kubelet_socket import Kubelet, devices, pod

from muster_agent.checks.state_file import StateSaver, StoredState
from muster_agent.findings.finding_log import log_transition
from muster_agent.findings.ledger import Transition, TransitionKind
from muster_agent.process.privileges import drop_privileges
from muster_agent.settings import AgentSettings, load_agent_settings
from muster_checks.base.vocabulary import Finding, Verdict
from muster_kube.process.settings import SettingsError

FINDING = Finding(component="gpu/0", verdict=Verdict.FAIL, reason="Xid79", message="GPU fell off the bus")


@pytest.fixture
def socket() -> Iterator[Path]:
    # not under tmp_path: the name of a Unix socket has 107 bytes at most
    with tempfile.TemporaryDirectory(prefix="kubelet-") as folder:
        yield Path(folder) / "kubelet.sock"


@pytest.fixture
async def world(tmp_path: Path, socket: Path) -> AsyncIterator[World]:
    world = World(tmp_path, socket, Tools(nvml=[reading(4.0)]))
    yield world
    world.idleness.close()


# --- why a heavy check does not run


async def test_a_pod_holds_an_accelerator(world: World, socket: Path) -> None:
    with Kubelet(GPU).listens(socket):
        assert await world.idleness.find_work() == "pod team-a/train-0 holds nvidia.com/gpu"


async def test_several_pods_hold_accelerators(world: World, socket: Path) -> None:
    with Kubelet(GPU + pod("train-1", devices("nvidia.com/gpu", "GPU-2"))).listens(socket):
        reason = await world.idleness.find_work()
    assert reason == "pod team-a/train-0 holds nvidia.com/gpu, and 1 more pods hold accelerators"


async def test_a_process_has_an_accelerator_open(world: World) -> None:
    world.node.process(5000, "python3", "/dev/nvidia0")
    assert await world.idleness.find_work() == "process python3 (PID 5000) holds /dev/nvidia0"


async def test_memory_of_a_gpu_is_in_use(world: World) -> None:
    world.tools._answers["nvml"] = [reading(70_000.0)]
    assert await world.idleness.find_work() == "70000 MiB of GPU 0 (0000:0b:00.0) are in use"


async def test_an_agent_that_sees_only_its_own_container(world: World) -> None:
    (world.view.root / "proc/2/stat").unlink()
    assert await world.idleness.find_work() == (
        "unknown: the agent sees only its own container's processes and no kubelet socket: set hostPID: true"
    )


async def test_a_kubelet_that_has_gone(world: World, socket: Path) -> None:
    with Kubelet().listens(socket):
        assert await world.idleness.find_work() == ""
    reason = await world.idleness.find_work()
    assert reason == f"unknown: {socket}: the socket no longer exists: check that the kubelet runs"


# --- why an agent does not start


def test_a_setting_that_does_not_exist(tmp_path: Path) -> None:
    file = tmp_path / "agent.yaml"
    file.write_text("checks: {dmesg: {enable: true}}\n")
    with pytest.raises(SettingsError) as refused:
        load_agent_settings(file, {}, {})
    assert str(refused.value) == (
        f"{file}: checks.dmesg.enable: True: unknown key; allowed: enabled, period, parameters"
    )


def test_run_as_names_root() -> None:
    with pytest.raises(SettingsError) as refused:
        drop_privileges(AgentSettings(node="n", run_as="0"))
    assert str(refused.value) == "run_as: '0': 0 is root; expected UID[:GID] of another user, such as 65534"


# --- log lines


@pytest.mark.parametrize(
    ("transition", "line"),
    [
        (
            Transition(TransitionKind.OPENED, FINDING, "NVRM: Xid (PCI:0000:3b:00): 79"),
            "node `n1` has dmesg FAIL: NVRM: Xid (PCI:0000:3b:00): 79",
        ),
        (
            Transition(TransitionKind.CLEARED, FINDING, "", "request"),
            "node `n1` no longer has dmesg FAIL: GPU fell off the bus",
        ),
    ],
)
def test_a_finding_comes_and_goes(caplog: pytest.LogCaptureFixture, transition: Transition, line: str) -> None:
    caplog.set_level(logging.INFO)
    log_transition("n1", "dmesg", transition)
    assert caplog.messages == [line]


async def test_the_state_cannot_be_saved(caplog: pytest.LogCaptureFixture) -> None:
    def fail(_: StoredState) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    assert not await StateSaver(lambda: StoredState(version=1, node="n1", checks={}), fail).flush()
    assert caplog.messages == [
        "cannot save state; if the agent crashes, it reads all logs again: [Errno 28] No space left on device"
    ]
