"""Whether work runs on one GPU, whatever its siblings do."""

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.agent.idle import test_idle_detector
from tests.agent.idle.test_device_users import OWN
from tests.agent.idle.test_idle_detector import World
from tests.agent.idle.test_vendor_tools import reading
from tests.agent.kubelet_socket import Kubelet, claim, devices, pod

from muster_agent.idle.idle_detector import UNKNOWN
from muster_agent.idle.occupancy import RunScope
from muster_kube.nodehealth import device_digest

world, kubelet, socket = test_idle_detector.world, test_idle_detector.kubelet, test_idle_detector.socket  # fixtures

DRIVER = "gpu.nvidia.com"
SCOPE = RunScope(device="0000:0b:00.0", held_as=(device_digest(DRIVER, "pool", "gpu-0"),))  # /dev/nvidia3
SIBLING = pod("train-0", claim(DRIVER, device="gpu-1"))


@pytest.fixture(autouse=True)
def _driver_files(tmp_path: Path) -> None:
    for address, minor in (("0000:0b:00.0", 3), ("0000:1b:00.0", 4)):
        folder = tmp_path / "proc/driver/nvidia/gpus" / address
        folder.mkdir(parents=True)
        (folder / "information").write_text(f"Model: \t\t NVIDIA H100\nDevice Minor: \t {minor}\n")


async def both(world: World) -> list[str]:
    """Before a test, and while it runs."""
    return [await world.idleness.find_work(SCOPE), await world.idleness.find_foreign_work(SCOPE)]


async def test_siblings_that_are_in_use_are_no_work(world: World, kubelet: Kubelet) -> None:
    kubelet.answer = SIBLING
    world.node.process(5000, "python3", "/dev/nvidia4", "/dev/nvidia-uvm")
    world.tools._answers["nvml"] = [reading(4.0, 70_000.0)]
    assert await both(world) == ["", ""]
    assert await world.idleness.find_work() != ""
    assert world.idleness.idle_since is None


@pytest.mark.parametrize(
    "answer",
    [
        pod("sick", claim(DRIVER, device="gpu-0")),
        SIBLING + pod("sick", claim(DRIVER, device="gpu-2"), claim(DRIVER, device="gpu-0")),
        pod("sick", devices("nvidia.com/gpu", "GPU-1")),  # a plug-in's device has another name
        pod("sick", claim("", "nvidia.com/gpu=1")),  # an older kubelet's
    ],
)
async def test_a_pod_that_holds_the_device_or_may_hold_it_is_work(
    world: World, kubelet: Kubelet, answer: bytes
) -> None:
    kubelet.answer = answer
    for reason in await both(world):
        assert "team-a/sick" in reason


async def test_without_the_names_of_the_device_every_holder_is_work(world: World, kubelet: Kubelet) -> None:
    kubelet.answer = SIBLING
    assert "team-a/train-0" in await world.idleness.find_work(RunScope(device=SCOPE.device))


async def test_a_process_with_its_device_file_is_work_and_our_own_is_not(world: World, kubelet: Kubelet) -> None:
    world.node.process(5001, "python3", "/dev/nvidia3", parent=OWN)
    assert await both(world) == ["", ""]
    world.node.process(5002, "python3", "/dev/nvidia4", "/dev/nvidia3")
    for reason in await both(world):
        assert "5002" in reason


async def test_its_memory_is_looked_at_before_a_test_only(world: World, kubelet: Kubelet) -> None:
    world.tools._answers["nvml"] = [reading(70_000.0)]
    before, during = await both(world)
    assert "70000 MiB" in before
    assert during == ""


def _no_minor(root: Path) -> None:
    (root / "proc/driver/nvidia/gpus/0000:0b:00.0/information").write_text("Model: NVIDIA H100\n")


def _no_file(root: Path) -> None:
    (root / "proc/driver/nvidia/gpus/0000:0b:00.0/information").unlink()


@pytest.mark.parametrize("break_it", [_no_minor, _no_file])
async def test_a_gpu_whose_device_file_is_not_known_is_not_idle(
    world: World, kubelet: Kubelet, tmp_path: Path, break_it: Callable[[Path], None]
) -> None:
    break_it(tmp_path)
    assert all(reason.startswith(UNKNOWN) for reason in await both(world))


async def test_a_kubelet_that_does_not_answer_leaves_it_unknown(world: World, kubelet: Kubelet) -> None:
    kubelet.answer = b"\xff"
    assert all(reason.startswith(UNKNOWN) for reason in await both(world))


async def test_without_a_kubelet_all_processes_must_be_visible(world: World) -> None:
    assert await both(world) == ["", ""]
    (world.node.root / "proc/2/stat").write_text("2 (pause) S 0 2 2 0 -1 4194560 1 0 0 0\n")  # a container's /proc
    assert all(reason.startswith(UNKNOWN) for reason in await both(world))
