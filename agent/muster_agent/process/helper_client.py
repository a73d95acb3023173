"""The agent's side of the helper process (tool_helper.py)."""

import asyncio
import itertools
import json
import socket
from collections.abc import Mapping, Sequence
from typing import Any

from muster_agent.process.tool_helper import AT_ONCE, OUTPUT_BYTES, is_allowed
from muster_checks.base.commands import OUTPUT_LIMIT_BYTES, Commands, LocalCommands, Output

_SLACK_S = 5.0  # for the end of a tool that was killed, and the way back
_LINE_BYTES = 16 * OUTPUT_BYTES  # both outputs, six bytes a character at most, and the rest


class HelperLost(RuntimeError):
    """The helper has ended, and this process has dropped the privileges to start another."""


class HelperCommands:
    """Runs the helper's commands by the helper, and all others in this process.

    :meth:`watch` must run meanwhile, because it reads the replies.

    A command line that still runs is not started again: its next caller waits for the same reply. So a disk that hangs
    in the kernel, whose tool cannot be ended, takes one of the helper's places, and the other disks keep theirs.
    """

    def __init__(self, connection: socket.socket, local: Commands | None = None) -> None:
        self._connection = connection
        self._local: Commands = local or LocalCommands()
        self._writer: asyncio.Future[asyncio.StreamWriter] | None = None
        self._numbers = itertools.count()
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._places = asyncio.Semaphore(AT_ONCE)
        self._running: dict[tuple[str, ...], asyncio.Task[dict[str, Any]]] = {}

    async def watch(self) -> None:
        """Read replies until cancelled. Raises HelperLost."""
        reader, writer = await asyncio.open_unix_connection(sock=self._connection, limit=_LINE_BYTES)
        self._connected().set_result(writer)
        try:
            while line := await reader.readline():
                found = json.loads(line)
                waiting = self._waiting.get(found.pop("number"))
                if waiting is not None and not waiting.done():
                    waiting.set_result(found)
        except ConnectionError:
            pass
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
        key = tuple(argv)
        if key not in self._running:
            self._running[key] = asyncio.create_task(self._run_by_helper(key, timeout_s))
        try:
            async with asyncio.timeout(timeout_s + _SLACK_S):
                found = await asyncio.shield(self._running[key])
        except TimeoutError:
            found = {"timed_out": True, "duration_s": timeout_s}
        printed = {name: found.get(name, "").encode("latin-1") for name in ("stdout", "stderr")}
        return Output(argv=key, **found | printed)

    async def _run_by_helper(self, argv: tuple[str, ...], timeout_s: float) -> dict[str, Any]:
        """Ends when the tool does, even if nobody waits for it any more."""
        number = next(self._numbers)
        waiting: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._waiting[number] = waiting
        try:
            async with self._places:
                writer = await asyncio.shield(self._connected())
                writer.write(json.dumps([number, argv, timeout_s]).encode() + b"\n")
                return await waiting
        finally:
            del self._waiting[number], self._running[argv]

    def which(self, name: str) -> str | None:
        return self._local.which(name)

    def _connected(self) -> "asyncio.Future[asyncio.StreamWriter]":
        if self._writer is None:
            self._writer = asyncio.get_running_loop().create_future()
        return self._writer
