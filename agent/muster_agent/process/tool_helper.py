"""The helper process: runs the few tools that need root, for an agent that has dropped its privileges.

The kernel checks the capability at each query of a disk, so a descriptor that was opened before does not help:
CAP_SYS_ADMIN for the health log of an NVMe disk (nvme_cmd_allowed(), drivers/nvme/host/ioctl.c), CAP_SYS_RAWIO for an
ATA command (scsi_cmd_allowed(), drivers/scsi/scsi_ioctl.c). A BMC only needs the owner of /dev/ipmi0, which is root.

The helper is root with these two capabilities at most and none to gain. It serves the process that started it, over a
socket pair that nothing else can open, and ends with it. It runs :data:`COMMANDS` and nothing else: of a request, only
the name of a disk and two numbers are free. No text of a client, a tenant or the cluster reaches a command line.
"""

import asyncio
import contextlib
import gc
import logging
import os
import re
import socket
from collections.abc import Collection, Sequence
from pathlib import Path

import msgspec

from muster_agent.process.capabilities import SYS_ADMIN, SYS_RAWIO, permitted, remaining_privileges, switch_user
from muster_checks.base.commands import Commands, LocalCommands, Output

log = logging.getLogger(__name__)

_DISK = r"/dev/(?:nvme[0-9]{1,4}|sd[a-z]{1,4})"
COMMANDS = tuple(
    re.compile(" ".join(words), re.ASCII)
    for words in (
        ("smartctl", "-j", "-i", "-H", "-A", _DISK),
        ("nvme", "smart-log", "-o", "json", r"/dev/nvme[0-9]{1,4}"),
        ("ipmitool", "sel", "elist", "last", "[1-9][0-9]{0,3}"),
        ("ipmitool", "sel", "time", "get"),
        ("ipmitool", "sensor"),
    )
)
"""The command lines that the helper runs; no word of them contains a space."""
FOR_DISKS = (SYS_RAWIO, SYS_ADMIN)
LONGEST_S = 120.0  # of one command: the upper limit of the check's parameter command_timeout_s
AT_ONCE = 64  # a node has fewer disks than this; a tool that waits in the kernel cannot be ended
OUTPUT_BYTES = 1 << 20  # 4,096 entries of an event log are 0.4 MB
FRAME_BYTES = 4 * OUTPUT_BYTES
_LENGTH_BYTES = 4


class HelperRequest(msgspec.Struct, frozen=True, array_like=True):
    """number: chosen by the client, comes back with the reply."""

    number: int
    argv: tuple[str, ...]
    timeout_s: float


class HelperReply(msgspec.Struct, frozen=True, array_like=True):
    number: int
    output: Output


def is_allowed(argv: Sequence[str]) -> bool:
    """Whether the helper runs this command line."""
    line = " ".join(argv)
    return line.count(" ") == len(argv) - 1 and any(form.fullmatch(line) for form in COMMANDS)


def start_helper(keep: Collection[int]) -> socket.socket:
    """Start the helper, and return the client's end of its socket. Call it as root, with one thread.

    keep: the capabilities that its commands need. It keeps those of them that this process has; without them, the
    tools report which disks they cannot query.
    """
    ours, its = socket.socketpair()
    gc.collect()
    gc.freeze()  # so that collections in the helper do not copy pages that both share
    if os.fork() == 0:  # pragma: no cover - in a process of its own; tests/agent/process/test_tool_helper.py runs it
        code = 1
        try:
            ours.close()
            _become_helper(its, keep)
            asyncio.run(serve(its, LocalCommands()))
            code = 0
        except BaseException:
            log.exception("the helper for disks and BMC has failed")
        finally:
            os._exit(code)  # the rest of the agent runs in its parent only
    gc.unfreeze()
    its.close()
    return ours


def _become_helper(connection: socket.socket, keep: Collection[int]) -> None:  # pragma: no cover - as above
    """Raises OSError, or RuntimeError if other privileges remain."""
    os.setsid()  # Ctrl-C is for the agent
    Path("/proc/self/comm").write_text("muster-helper")
    path = os.environ.get("PATH", os.defpath)
    os.environ.clear()  # nothing that a tool or its libraries would read
    os.environ["PATH"] = path
    os.closerange(3, connection.fileno())
    os.closerange(connection.fileno() + 1, os.sysconf("SC_OPEN_MAX"))
    kept = permitted(keep)
    switch_user(0, 0, kept)
    left = remaining_privileges("self", 0, 0, kept)
    if left:
        raise RuntimeError(f"privileges remain after dropping them: {', '.join(left)}")


async def serve(connection: socket.socket, commands: Commands) -> None:
    """Run what the client requests until it closes its end. Raises ValueError for a message that no client sends."""
    reader, writer = await asyncio.open_unix_connection(sock=connection)
    running: set[asyncio.Task[None]] = set()

    async def answer(request: HelperRequest) -> None:
        timeout_s = min(max(request.timeout_s, 0.0), LONGEST_S)
        output = await commands.run(request.argv, timeout_s=timeout_s, limit_bytes=OUTPUT_BYTES)
        writer.write(frame(HelperReply(request.number, output)))

    try:
        while (message := await read_message(reader)) is not None:
            request = msgspec.msgpack.decode(message, type=HelperRequest)
            if not is_allowed(request.argv):
                raise ValueError(f"refused: {' '.join(request.argv)[:200]!r} is not one of the helper's commands")
            if len(running) >= AT_ONCE:
                busy = Output(argv=request.argv, exit_code=1, stderr=b"too many tools are running already")
                writer.write(frame(HelperReply(request.number, busy)))
                continue
            task = asyncio.create_task(answer(request))
            running.add(task)
            task.add_done_callback(running.discard)
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        writer.close()


def frame(message: HelperRequest | HelperReply) -> bytes:
    content = msgspec.msgpack.encode(message)
    return len(content).to_bytes(_LENGTH_BYTES) + content


async def read_message(reader: asyncio.StreamReader) -> bytes | None:
    """None at the end of the connection. Raises ValueError."""
    with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
        length = int.from_bytes(await reader.readexactly(_LENGTH_BYTES))
        if length > FRAME_BYTES:
            raise ValueError(f"a message of {length} bytes: expected at most {FRAME_BYTES}")
        return await reader.readexactly(length)
    return None
