"""The helper of an agent without privileges, which opens the log files of pods and nothing else."""

import asyncio
import errno
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from tests.agent.kubelet_socket import Kubelet, devices, pod
from tests.agent.process.test_privileges import NOBODY, Place, place, until
from tests.checks.containerlog.pod_folder import POD, ContainerFiles
from tests.machine import needs

from muster_agent.idle.pod_resources import PodResources
from muster_agent.process.capabilities import remaining_privileges
from muster_agent.process.pod_logs import AgentPodLogs, LogHelper, LogHelperLost, start_log_helper
from muster_agent.settings import AgentSettings
from muster_checks.base.execution import CannotTell
from muster_checks.containerlog.log_folder import FolderOpener
from muster_checks.containerlog.log_opener import NotALog

__all__ = ["place"]  # a fixture
pytestmark = needs("root")  # only root has rights that it can give up
ECC = "RuntimeError: CUDA error: uncorrectable ECC error encountered"


def settings_of(folder: Path, **others: object) -> AgentSettings:
    check = {"enabled": True, "parameters": {"folder": str(folder)}}
    return AgentSettings.model_validate({"run_as": str(NOBODY), "checks": {"containerlog": check}, **others})


@pytest.fixture
def logs(tmp_path: Path) -> ContainerFiles:
    """As containerd and the kubelet make them: nobody but root may look."""
    files = ContainerFiles(tmp_path / "pods")
    files.print("a line")
    files.current.chmod(0o600)
    (tmp_path / "pods").chmod(0o750)
    return files


@pytest.fixture
def helper(logs: ContainerFiles) -> Iterator[LogHelper]:
    started = start_log_helper(settings_of(logs.folder.parents[1]))
    assert started is not None
    yield started
    started.close()


def read(opener: LogHelper, *parts: str) -> bytes:
    handle = opener.open(parts)
    try:
        return os.read(handle, 4096)
    finally:
        os.close(handle)


def test_it_opens_logs_and_lists_folders(helper: LogHelper, logs: ContainerFiles) -> None:
    assert read(helper, POD, "main", "0.log").endswith(b" stdout F a line\n")
    for parts, names in (((), [POD]), ((POD,), ["main"]), ((POD, "main"), ["0.log"])):
        handle = helper.open(parts)
        assert os.listdir(handle) == names  # noqa: PTH208 - a descriptor, no path
        assert os.get_inheritable(handle) is False
        os.close(handle)


def test_it_refuses_everything_else_and_goes_on(helper: LogHelper, logs: ContainerFiles) -> None:
    (logs.folder / "1.log").symlink_to("/etc/shadow")
    os.mkfifo(logs.folder / "2.log")
    for parts in (("..",), ("..", "..", "etc"), (POD, "main", "1.log"), (POD, "main", "2.log"), ("/etc/shadow",)):
        with pytest.raises(NotALog):
            helper.open(parts)
    for parts in (("none",), (POD, "main", "3.log")):
        with pytest.raises(FileNotFoundError):
            helper.open(parts)
    with pytest.raises(OSError):
        helper.open(("x" * 5000,))
    assert read(helper, POD, "main", "0.log")


def test_it_has_no_capability_and_cannot_write(helper: LogHelper, logs: ContainerFiles) -> None:
    assert read(helper, POD, "main", "0.log")  # it has started
    assert remaining_privileges(str(helper.pid), 0, 0) == []
    handle = helper.open((POD, "main", "0.log"))
    with pytest.raises(OSError):
        os.write(handle, b"x")
    os.close(handle)


def test_it_ends_with_the_agent(logs: ContainerFiles) -> None:
    started = start_log_helper(settings_of(logs.folder.parents[1]))
    assert started is not None
    started.close()  # what the end of the agent's process does
    with pytest.raises(ProcessLookupError):
        os.kill(started.pid, 0)


@pytest.mark.parametrize("kernel", ["new", "before 5.3"])
async def test_its_end_ends_the_agent(helper: LogHelper, kernel: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if kernel == "before 5.3":
        monkeypatch.setattr(os, "pidfd_open", pidfd_open_of_an_old_kernel)
    watching = asyncio.create_task(helper.watch())
    await asyncio.sleep(0)
    assert not watching.done()
    os.kill(helper.pid, signal.SIGKILL)
    async with asyncio.timeout(60):
        with pytest.raises(LogHelperLost):
            await watching
    with pytest.raises(OSError):
        helper.open((POD,))


def pidfd_open_of_an_old_kernel(_: int) -> int:
    raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))


@pytest.mark.parametrize(
    "others",
    [{"run_as": None}, {"checks": {}}, {"checks": {"containerlog": {"enabled": True, "parameters": {"files": 0}}}}],
)
def test_there_is_none_without_need(tmp_path: Path, others: dict[str, object]) -> None:
    assert start_log_helper(settings_of(tmp_path, **others)) is None


async def test_the_kubelet_says_which_pods_hold_accelerators(tmp_path: Path) -> None:
    path = tmp_path / "kubelet.sock"
    answer = pod("train-0", devices("nvidia.com/gpu", "GPU-1"), namespace="ml") + pod("web", namespace="ml")
    kubelet = PodResources(path, answer_s=60.0)
    without = AgentPodLogs(kubelet, None)
    with pytest.raises(CannotTell):
        await without.accelerator_pods()
    with Kubelet(answer).listens(path):
        assert await without.accelerator_pods() == {"ml/train-0"}
    with pytest.raises(CannotTell):
        await without.accelerator_pods()
    kubelet.close()
    assert isinstance(without.opener(tmp_path), FolderOpener)


def test_an_agent_that_became_nobody_reads_the_logs_of_accelerator_pods(place: Path) -> None:
    socket = place / "kubelet.sock"
    pods = place / "pods"
    for name in ("train-0", "web"):
        files = ContainerFiles(pods, f"ml_{name}_0f6c", now=time.time())
        files.print(ECC)
        files.current.chmod(0o600)
        files.folder.chmod(0o750)
    pods.chmod(0o750)
    here = Place(place, run_as=str(NOBODY), pod_resources=str(socket))
    config = yaml.safe_load(here.config.read_text())
    config["checks"]["dmesg"] = {"enabled": False}
    config["checks"]["containerlog"] = {"enabled": True, "parameters": {"folder": str(pods)}}
    here.config.write_text(yaml.safe_dump(config))
    answer = pod("train-0", devices("nvidia.com/gpu", "GPU-1"), namespace="ml") + pod("web", namespace="ml")
    with Kubelet(answer).listens(socket), here.running() as agent:

        def found() -> str:
            text = agent.get("/status?check=containerlog&format=json")
            return text if "pod/ml/train-0" in text else ""

        said = until(found, lambda: agent.log)
        rights = agent.rights()
        helpers = Path(f"/proc/{agent.process.pid}/task/{agent.process.pid}/children").read_text().split()
        assert [remaining_privileges(each, 0, 0) for each in helpers] == [[]]
        os.kill(int(helpers[0]), signal.SIGKILL)
        assert agent.process.wait(60) == 1  # the kubelet starts it again
    assert "CudaUncorrectableEcc" in said
    assert "pod/ml/web" not in said
    assert {each["Uid"] for each in rights.values()} == {"\t".join([str(NOBODY)] * 4)}
    assert {each["CapEff"] for each in rights.values()} == {"0" * 16}
