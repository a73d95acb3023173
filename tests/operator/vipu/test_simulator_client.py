"""The simulator's back end, asked something that is no simulator."""

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from muster_operator.vipu.controller import VipuError, VipuUnreachable
from muster_operator.vipu.simulator_client import ANSWER_LIMIT, SimulatorController

FAR_S = 120.0


@asynccontextmanager
async def answering(raw: bytes) -> AsyncIterator[SimulatorController]:
    """A server that says ``raw`` to whatever it is asked."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(raw)
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the other side has had enough
        finally:
            writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    try:
        yield SimulatorController("127.0.0.1", server.sockets[0].getsockname()[1], timeout_s=FAR_S)
    finally:
        server.close()
        await server.wait_closed()


def http(status: str, body: bytes) -> bytes:
    return b"HTTP/1.1 %s\r\nContent-Length: %d\r\n\r\n%s" % (status.encode(), len(body), body)


Call = Callable[[SimulatorController], Awaitable[object]]
CALLS: list[Call] = [
    SimulatorController.list_partitions,
    SimulatorController.read_capacity,
    SimulatorController.list_ipus,
    lambda controller: controller.find_partition("a"),
    lambda controller: controller.count_free_blocks(4),
]
CHANGES: list[Call] = [
    lambda controller: controller.create("a", 4, 1),
    lambda controller: controller.reset("a"),
    lambda controller: controller.remove("a"),
]
NONSENSE = {
    "a page": http("200 OK", b"<html>It works!</html>"),
    "another JSON": http("200 OK", b'{"items": []}'),
    "a state that is none": http("200 OK", b'[{"name": "a", "size": 4, "gcds": 1, "state": "FINE", "ipus": []}]'),
    "nothing": http("200 OK", b""),
    "not UTF-8": http("200 OK", b'"\xff"'),
    "a page that is not there": http("404 Not Found", b"<html>404</html>"),
    "elsewhere": http("301 Moved Permanently", b""),
}


@pytest.mark.parametrize("raw", NONSENSE.values(), ids=NONSENSE.keys())
async def test_nonsense_is_an_error_and_after_a_change_no_answer(raw: bytes) -> None:
    async with answering(raw) as controller:
        for call in CALLS:
            with pytest.raises(VipuError, match=re.escape(controller.address)) as caught:
                await call(controller)
            assert caught.type is VipuError
        for change in CHANGES:
            with pytest.raises(VipuUnreachable, match=re.escape(controller.address)):
                await change(controller)


BROKEN = {
    "an error of the server": http("500 Internal Server Error", b"oops"),
    "a gateway that finds nobody": http("502 Bad Gateway", b""),
    "no HTTP": b"SSH-2.0-OpenSSH_9.2p1\r\n",
    "half an answer": b"HTTP/1.1 202 Accepted\r\nContent-Length: 1000\r\n\r\n{",
    "silence": b"",
}


@pytest.mark.parametrize("raw", BROKEN.values(), ids=BROKEN.keys())
async def test_a_truncated_answer_is_unreachable(raw: bytes) -> None:
    async with answering(raw) as controller:
        for call in [*CALLS, *CHANGES]:
            with pytest.raises(VipuUnreachable, match=r"127\.0\.0\.1:"):
                await call(controller)


async def test_an_answer_without_end_is_cut_off() -> None:
    chunk = b"100000\r\n" + b" " * 0x100000 + b"\r\n"
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    async with answering(head + chunk * (1 + ANSWER_LIMIT // 0x100000)) as controller:
        with pytest.raises(VipuUnreachable, match=str(ANSWER_LIMIT)):
            await controller.list_partitions()
