"""A check that takes minutes: its caller is waited for, however long that is."""

import asyncio
import contextlib
import socket

import uvicorn

from muster_kube.http.client_timeouts import Impatient


class Patient(Impatient):
    """Its limits are passed by the test, never by a machine that is slow."""

    request_s = answer_s = 600.0


async def test_a_caller_whose_check_takes_long_keeps_its_connection(loop_time):
    begun, may_answer = asyncio.Event(), asyncio.Event()

    async def check(_scope, _receive, send):
        begun.set()
        await may_answer.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"ok"})

    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(
        uvicorn.Config(check, interface="asgi3", http=Patient, lifespan="off", ws="none", log_config=None)
    )
    server.capture_signals = contextlib.nullcontext  # type: ignore[method-assign] # signals are pytest's
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    reader, writer = await asyncio.open_connection(*listener.getsockname())
    writer.write(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    await begun.wait()
    for _ in range(5):
        await loop_time.passes(Patient.request_s + 1)
    may_answer.set()
    assert b"200" in await reader.readline()
    writer.close()
    server.should_exit = True
    await serving
