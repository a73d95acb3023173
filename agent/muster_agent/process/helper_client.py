"""The agent's side of the helper process (tool_helper.py)."""

import asyncio
import itertools
import socket
from collections.abc import Mapping, Sequence

import msgspec

from muster_agent.process.tool_helper import HelperReply, HelperRequest, frame, is_allowed, read_message
from muster_checks.base.commands import OUTPUT_LIMIT_BYTES, Commands, LocalCommands, Output

_SLACK_S = 5.0  # for the end of a tool that was killed, and the way back


class HelperLost(RuntimeError):
    """The helper has ended, and this process has dropped the privileges to start another."""


class HelperCommands:
    """Runs the helper's commands by the helper, and all others in this process.

    :meth:`watch` must run meanwhile, because it reads the replies.
    """

    def __init__(self, connection: socket.socket, local: Commands | None = None) -> None:
        self._connection = connection
        self._local: Commands = local or LocalCommands()
        self._writer: asyncio.Future[asyncio.StreamWriter] | None = None
        self._numbers = itertools.count()
        self._waiting: dict[int, asyncio.Future[Output]] = {}

    async def watch(self) -> None:
        """Read replies until cancelled. Raises HelperLost."""
        reader, writer = await asyncio.open_unix_connection(sock=self._connection)
        self._connected().set_result(writer)
        try:
            while (message := await read_message(reader)) is not None:
                reply = msgspec.msgpack.decode(message, type=HelperReply)
                waiting = self._waiting.pop(reply.number, None)
                if waiting is not None and not waiting.done():
                    waiting.set_result(reply.output)
        finally:
            writer.close()
        raise HelperLost("the helper process for disks and BMC has ended: restart the agent")

    async def run(
        self,
        argv: Sequence[str],
        *,
        timeout_s: float,
        environment: Mapping[str, str] | None = None,
        limit_bytes: int = OUTPUT_LIMIT_BYTES,
    ) -> Output:
        if not is_allowed(argv):
            return await self._local.run(argv, timeout_s=timeout_s, environment=environment, limit_bytes=limit_bytes)
        number, waiting = next(self._numbers), asyncio.get_running_loop().create_future()
        self._waiting[number] = waiting
        try:
            async with asyncio.timeout(timeout_s + _SLACK_S):
                writer = await asyncio.shield(self._connected())
                writer.write(frame(HelperRequest(number, tuple(argv), timeout_s)))
                output: Output = await waiting
                return output
        except TimeoutError:
            return Output(argv=tuple(argv), timed_out=True, duration_s=timeout_s)
        finally:
            self._waiting.pop(number, None)

    def which(self, name: str) -> str | None:
        return self._local.which(name)

    def _connected(self) -> "asyncio.Future[asyncio.StreamWriter]":
        if self._writer is None:
            self._writer = asyncio.get_running_loop().create_future()
        return self._writer
