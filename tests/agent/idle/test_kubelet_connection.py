"""The kubelet is asked over a real socket, which a real gRPC server listens on, or somebody else."""

import asyncio
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest
from tests.agent.kubelet_socket import Kubelet, devices, field, pod
from tests.machine import needs

from muster_agent.idle.pod_resources import LIMIT_BYTES, DeviceHolder, HoldersUnknown, PodResources

PATIENT_S = 60.0  # no server here is slow but on purpose; this machine may be
GPU = pod("train-0", devices("nvidia.com/gpu", "GPU-1", "GPU-2"))


@pytest.fixture
def path() -> Iterator[Path]:
    # not under tmp_path: the name of a Unix socket has 107 bytes at most
    with tempfile.TemporaryDirectory(prefix="kubelet-") as folder:
        yield Path(folder) / "kubelet.sock"


@pytest.fixture
def kubelet(path: Path) -> Iterator[Kubelet]:
    with Kubelet().listens(path) as kubelet:
        yield kubelet


@asynccontextmanager
async def asking(path: Path, answer_s: float = PATIENT_S) -> AsyncIterator[PodResources]:
    resources = PodResources(path, answer_s=answer_s)
    try:
        yield resources
    finally:
        resources.close()
        await asyncio.sleep(0)


async def why_unknown(resources: PodResources) -> str:
    with pytest.raises(HoldersUnknown) as caught:
        await resources.holders()
    assert str(resources.path) in str(caught.value)
    return str(caught.value)


async def test_a_pod_with_a_gpu_holds_the_node(path: Path, kubelet: Kubelet) -> None:
    kubelet.answer = GPU + pod("web", namespace="shop")
    async with asking(path) as resources:
        assert await resources.holders() == [DeviceHolder("team-a/train-0", ("nvidia.com/gpu",))]


async def test_a_node_without_pods_is_free(path: Path, kubelet: Kubelet) -> None:
    async with asking(path) as resources:
        assert await resources.holders() == []


# --- the connection


async def test_the_connection_is_kept(path: Path, kubelet: Kubelet) -> None:
    async with asking(path) as resources:
        resources.open_now()
        path.unlink()  # nobody can connect again
        for _ in range(3):
            assert await resources.holders() == []
    assert len(kubelet.asked) == 3


async def test_callers_at_the_same_time_share_an_answer(path: Path, kubelet: Kubelet) -> None:
    async with asking(path) as resources:
        answers = await asyncio.gather(*(resources.holders() for _ in range(10)))
    assert answers == [[]] * 10
    assert len(kubelet.asked) == 1


async def test_a_kubelet_that_was_started_anew_is_asked_at_once(path: Path) -> None:
    async with asking(path) as resources:
        with Kubelet().listens(path):
            assert await resources.holders() == []
        with Kubelet(GPU).listens(path):
            assert await resources.holders() == [DeviceHolder("team-a/train-0", ("nvidia.com/gpu",))]


async def test_where_no_socket_ever_was_there_is_no_kubelet(path: Path) -> None:
    async with asking(path) as resources:
        assert await resources.holders() is None
        with Kubelet().listens(path):
            assert await resources.holders() == []


async def test_a_socket_that_has_gone_is_no_absent_kubelet(path: Path) -> None:
    async with asking(path) as resources:
        with Kubelet().listens(path):
            assert await resources.holders() == []
        assert await why_unknown(resources)


async def test_a_socket_that_nobody_listens_on_leaves_holders_unknown(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as left_behind:
        left_behind.bind(str(path))
    async with asking(path) as resources:
        assert await why_unknown(resources)


async def test_an_answer_of_a_megabyte_is_read(path: Path, kubelet: Kubelet) -> None:
    kubelet.answer = b"".join(pod(f"train-{number}", devices("nvidia.com/gpu", "G" * 900)) for number in range(1000))
    async with asking(path) as resources:
        for _ in range(3):  # more than a connection's window of flow control
            holders = await resources.holders()
            assert holders is not None
            assert len(holders) == 1000


async def test_an_answer_without_end_is_given_up(path: Path, kubelet: Kubelet) -> None:
    kubelet.answer = field(9, bytes(LIMIT_BYTES))
    async with asking(path) as resources:
        assert "4 MiB" in await why_unknown(resources)
        kubelet.answer = GPU
        assert await resources.holders()  # over the same connection


async def test_a_kubelet_before_1_20_is_asked_in_its_own_words(path: Path) -> None:
    with Kubelet(GPU).listens(path, services=("v1alpha1",)) as kubelet:
        async with asking(path) as resources:
            assert await resources.holders()
            assert await resources.holders()
    assert kubelet.asked == ["v1alpha1"] * 2


async def test_a_kubelet_that_has_too_much_to_do_is_asked_again(path: Path, kubelet: Kubelet) -> None:
    def first_no_then_yes(context: grpc.ServicerContext) -> bytes:
        if len(kubelet.asked) < 3:
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "rejected by rate limit")
        return GPU

    kubelet.answer = first_no_then_yes
    async with asking(path) as resources:
        assert await resources.holders()
    assert len(kubelet.asked) == 3


async def test_a_kubelet_s_error_is_quoted(path: Path, kubelet: Kubelet) -> None:
    kubelet.answer = lambda context: context.abort(grpc.StatusCode.INTERNAL, "böse\n\x1b[31m%")
    async with asking(path) as resources:
        reason = await why_unknown(resources)
    assert "13: böse??[31m%" in reason


async def test_a_garbled_answer_leaves_holders_unknown(path: Path, kubelet: Kubelet) -> None:
    kubelet.answer = GPU[:-3]
    async with asking(path) as resources:
        assert await why_unknown(resources)


async def test_a_kubelet_that_hangs_is_not_waited_for_and_then_asked_again(path: Path, kubelet: Kubelet) -> None:
    go_on = threading.Event()

    def late(context: grpc.ServicerContext) -> bytes:
        go_on.wait(PATIENT_S)
        return GPU

    kubelet.answer = late
    async with asking(path, answer_s=0.2) as resources:
        resources.open_now()
        path.unlink()
        assert "0.2 s" in await why_unknown(resources)
        go_on.set()
        kubelet.answer = GPU
        resources.answer_s = PATIENT_S
        assert await resources.holders()  # the same connection: there is no other


Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def answering(path: Path, serve: Serve) -> AsyncIterator[list[int]]:
    """A server that does ``serve`` with each connection. Yields the list of those it has had."""
    had: list[int] = []

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        had.append(len(had))
        try:
            await serve(reader, writer)
        except ConnectionError:
            pass
        finally:
            writer.close()

    server = await asyncio.start_unix_server(connected, path)
    try:
        yield had
    finally:
        server.close()
        await server.wait_closed()


async def test_what_is_no_grpc_leaves_holders_unknown(path: Path) -> None:
    async def talk_http_1(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1000)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\nwhat do you want?\r\n")
        await writer.drain()

    async with answering(path, talk_http_1) as had, asking(path) as resources:
        assert await why_unknown(resources)
        assert await why_unknown(resources)
        assert len(had) == 2


async def test_a_server_that_hangs_up_is_tried_once_a_look(path: Path) -> None:
    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)

    async with answering(path, hang_up) as had, asking(path) as resources:
        assert await why_unknown(resources)
        assert len(had) == 1


async def test_an_answer_that_stops_in_the_middle_is_not_waited_for(path: Path) -> None:
    gone = asyncio.Event()

    async def begin(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(bytes.fromhex("00000004000000000000ff0000"))  # SETTINGS, and the beginning of a frame
        await writer.drain()
        await gone.wait()

    async with answering(path, begin), asking(path, answer_s=0.2) as resources:
        assert "0.2 s" in await why_unknown(resources)
        gone.set()


async def test_a_server_that_chatters_on_is_not_waited_for(path: Path) -> None:
    async def chatter(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(bytes.fromhex("000000040000000000"))
        while not writer.is_closing():
            writer.write(bytes.fromhex("000008060000000000") + bytes(8))  # PING
            await writer.drain()
            await asyncio.sleep(0.01)

    async with answering(path, chatter), asking(path, answer_s=0.3) as resources:
        assert "0.3 s" in await why_unknown(resources)


async def test_a_caller_who_goes_away_leaves_the_connection_whole(path: Path, kubelet: Kubelet) -> None:
    async with asking(path) as resources:
        resources.open_now()
        path.unlink()
        caller = asyncio.create_task(resources.holders())
        await asyncio.sleep(0)
        caller.cancel()
        await asyncio.gather(caller, return_exceptions=True)
        assert await resources.holders() == []


# --- rights

DROPPED = """
import asyncio, os, sys
from pathlib import Path
from muster_agent.idle.pod_resources import PodResources, HoldersUnknown
resources = PodResources(Path(sys.argv[1]), answer_s=60)
import muster_agent.idle.grpc_call  # not all who test have their Python where nobody may read it
if sys.argv[2] == "early":
    resources.open_now()
os.setgroups([]); os.setresgid(65534, 65534, 65534); os.setresuid(65534, 65534, 65534)
async def main():
    for _ in range(2):
        try:
            print("holders", await resources.holders(), resources.lost, flush=True)
        except HoldersUnknown as error:
            print("unknown", error, resources.lost, flush=True)
        sys.stdin.readline()
    resources.close()
asyncio.run(main())
"""


async def ask_without_rights(path: Path, when: str) -> asyncio.subprocess.Process:
    path.parent.chmod(0o750)
    return await asyncio.create_subprocess_exec(
        sys.executable, "-c", DROPPED, str(path), when, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )


async def printed_line(process: asyncio.subprocess.Process) -> str:
    assert process.stdin is not None
    assert process.stdout is not None
    line = await process.stdout.readline()
    process.stdin.write(b"\n")
    return line.decode()


@needs("root")  # which has rights to drop
async def test_what_was_opened_before_the_rights_went_serves_on_until_the_kubelet_ends(path: Path) -> None:
    with Kubelet().listens(path):
        process = await ask_without_rights(path, "early")
        assert process.stdout is not None
        assert process.stdin is not None
        assert (await process.stdout.readline()).decode() == "holders [] False\n"
    with Kubelet().listens(path):
        process.stdin.write(b"\n")
        second = await printed_line(process)
        await process.communicate()
    assert second.startswith("unknown")
    assert second.endswith("True\n")


@needs("root")  # which has rights to drop
async def test_an_agent_that_never_had_the_right_is_not_to_be_restarted(path: Path) -> None:
    with Kubelet().listens(path):
        process = await ask_without_rights(path, "late")
        first = await printed_line(process)
        await process.communicate(b"\n")
    assert first.startswith("unknown")
    assert first.endswith("False\n")


def test_h2_is_not_loaded_where_no_kubelet_is(path: Path) -> None:
    program = (
        "import asyncio, sys; from pathlib import Path; from muster_agent.idle.pod_resources import PodResources;"
        "print(asyncio.run(PodResources(Path(sys.argv[1])).holders()), 'h2' in sys.modules)"
    )
    output = subprocess.run(
        [sys.executable, "-W", "error", "-c", program, str(path)], capture_output=True, text=True, check=True
    )
    assert output.stdout == "None False\n"
