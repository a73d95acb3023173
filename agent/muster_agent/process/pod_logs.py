"""What the check containerlog gets from the agent: the pods that hold accelerators, and their log files.

Log files belong to root, with mode 0640 (containerd) or 0600 (CRI-O before conmon 2.1.13). An agent that drops its
privileges therefore leaves a helper behind, which has no capabilities either, but stays the user root. It opens files
below the log folder, passes their descriptors on, and does nothing else. Whoever takes over the agent gains the logs of
the node's containers. With root's group for the agent itself, it would be every file that this group may read.
"""

import asyncio
import errno
import logging
import os
import signal
import socket
import struct
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from pydantic import ValidationError

from muster_agent.idle.pod_resources import HoldersUnknown, PodResources
from muster_agent.process.capabilities import remaining_privileges, switch_user
from muster_agent.settings import AgentSettings, CheckSettings
from muster_checks.base.declaration import LogOpener
from muster_checks.base.execution import CannotTell
from muster_checks.containerlog import CONTAINERLOG, ContainerlogParameters, log_opener
from muster_checks.containerlog.log_folder import FolderOpener
from muster_checks.containerlog.log_opener import ANSWER_BYTES, FAILED, NO_LOG, OPENED, NotALog

log = logging.getLogger(__name__)

_HANDLE = struct.Struct("i")


class LogHelperLost(Exception):
    """The helper has ended. Only a restarted agent, with the privileges of its start, can start another."""


class LogHelper:
    """The helper process ``pid``, at the other end of ``connection``. alive: a pipe that ends with the helper."""

    def __init__(self, folder: Path, connection: socket.socket, pid: int, alive: int) -> None:
        self.folder = folder
        self.pid = pid
        self._alive = alive
        self._connection = connection
        self._lock = threading.Lock()  # one request at a time: an answer belongs to the last one

    def open(self, parts: Sequence[str], /) -> int:
        """As open_beneath."""
        request = "/".join(parts) or "."  # an empty message is the end of the connection
        with self._lock:
            self._connection.send(os.fsencode(request))
            # not socket.recv_fds, which ignores its flags
            answer, passed, _, _ = self._connection.recvmsg(
                ANSWER_BYTES, socket.CMSG_SPACE(_HANDLE.size), socket.MSG_CMSG_CLOEXEC
            )
        if answer == OPENED and passed:
            handle: int = _HANDLE.unpack(passed[0][2])[0]
            return handle
        kind, number, text = answer[:1], *answer[1:].decode("utf-8", "replace").partition(":")[::2]
        if kind not in (FAILED, NO_LOG):
            raise OSError(errno.ESRCH, "the process that opens log files has ended")
        raise (NotALog if kind == NO_LOG else OSError)(int(number), text, request)

    async def watch(self) -> None:
        """Raises LogHelperLost when the helper ends."""
        ended = asyncio.Event()
        loop = asyncio.get_running_loop()
        # nobody writes to the pipe. Not pidfd_open(2), which needs Linux 5.3 and which some seccomp profiles forbid
        loop.add_reader(self._alive, ended.set)
        try:
            await ended.wait()
        finally:
            loop.remove_reader(self._alive)
        raise LogHelperLost("the process that opens log files has ended: restart the agent")

    def close(self) -> None:
        """End the helper."""
        self._connection.close()
        os.close(self._alive)
        os.waitpid(self.pid, 0)


def start_log_helper(settings: AgentSettings) -> LogHelper | None:
    """Start the helper before the privileges are dropped; None if the check is not enabled.

    Call it while the process has one thread: the helper is a fork.
    """
    own = settings.checks.get(CONTAINERLOG.name, CheckSettings())
    if settings.run_as is None or not own.enables(CONTAINERLOG):
        return None
    try:
        folder = ContainerlogParameters.model_validate(own.parameters).folder
    except ValidationError:
        return None  # the start will fail with a better message
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    alive, its_alive = os.pipe()
    pid = os.fork()
    if pid == 0:
        ours.close()
        _become_helper(folder, theirs, its_alive)
    theirs.close()
    os.close(its_alive)
    return LogHelper(folder, ours, pid, alive)


def _become_helper(folder: Path, connection: socket.socket, alive: int) -> NoReturn:
    """In the fork: drop everything but the user, and replace the program, so that nothing of the agent stays.

    alive: stays open as long as the process is there."""
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # from a terminal; the agent ends it
        switch_user(0, 0)
        if left := remaining_privileges("self", 0, 0):
            log.error("cannot start the process that opens log files: privileges remain: %s", ", ".join(left))
        else:
            connection.set_inheritable(True)
            os.set_inheritable(alive, True)
            program = [sys.executable, "-I", "-S", log_opener.__file__, str(folder), str(connection.fileno())]
            os.execve(sys.executable, program, {})  # noqa: S606 - no shell
    except OSError as error:
        log.error("cannot start the process that opens log files: %s", error)  # noqa: TRY400 - no stack trace
    finally:
        os._exit(1)  # never back into the agent's code


class AgentPodLogs:
    """helper: None if the agent keeps its privileges."""

    def __init__(self, kubelet: PodResources, helper: LogHelper | None) -> None:
        self._kubelet = kubelet
        self._helper = helper

    async def accelerator_pods(self) -> frozenset[str]:
        try:
            holders = await self._kubelet.holders()
        except HoldersUnknown as error:
            raise CannotTell(str(error)) from None
        if holders is None:
            raise CannotTell(
                f"{self._kubelet.path}: no such socket, so it is unknown which pods hold accelerators: mount its "
                "folder, or set pods=all and namespaces"
            )
        return frozenset(holder.pod for holder in holders)

    def opener(self, folder: Path, /) -> LogOpener:
        return self._helper or FolderOpener(folder)
