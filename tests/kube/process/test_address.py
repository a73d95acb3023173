"""Where the parts listen: answers go out at once."""

import asyncio
import socket

from muster_kube.process.address import bind_socket


async def test_a_server_s_connections_wait_for_no_full_segment() -> None:
    """Without TCP_NODELAY an answer in two writes waits 40 ms for a delayed ACK."""
    options: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        options.set_result(writer.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
        writer.close()
        await writer.wait_closed()

    bound = bind_socket("127.0.0.1", 0)
    async with await asyncio.start_server(serve, sock=bound):
        _, writer = await asyncio.open_connection(*bound.getsockname()[:2])
        assert await options == 1
        writer.close()
        await writer.wait_closed()
