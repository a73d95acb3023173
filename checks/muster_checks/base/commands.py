"""Runs the tools that checks depend on, with bounded output and a timeout that kills the whole process group.

Nothing here raises because of what a tool does. For a tool that is missing, hangs, is killed or prints endlessly, the
:class:`Output` holds the reason, and the check's verdict is UNKNOWN.
"""

import asyncio
import contextlib
import errno
import os
import shutil
import signal
import sys
import time
from collections.abc import Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import msgspec

OUTPUT_LIMIT_BYTES = 8 << 20  # of each of stdout and stderr; `nvidia-smi -q -x` of 16 GPUs prints 1 MB
LOOK_S = 0.25  # how often to check whether a tool has exited while its pipes are still open
AFTER_END_S = 1.0  # after the tool exits, its output is read at once; only its children may still hold a pipe
STOP_S = 0.5  # grace period for a cancelled tool to exit; a job may be waiting for the accelerators
AFTER_KILL_S = 2.0  # SIGKILL does not end a process in uninterruptible sleep: it is abandoned after this time
START_S = 10.0  # forking takes milliseconds; on a machine that swaps, seconds
SANE_LOCALE = {"LC_ALL": "C", "LANG": "C", "LANGUAGE": ""}  # decimal points, English messages


class Output(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of one command.

    exit_code:  None if it did not exit on its own (missing, timed out); negative: minus the signal that killed it
    missing:    why it could not be started; empty if it ran
    timed_out:  we killed it at its timeout, which is then its duration_s
    truncated:  stdout or stderr exceeded the limit; the rest was read and discarded
    """

    argv: tuple[str, ...]
    exit_code: int | None = None
    stdout: bytes = b""
    stderr: bytes = b""
    missing: str = ""
    timed_out: bool = False
    truncated: bool = False
    duration_s: float = 0.0

    @property
    def ok(self) -> bool:
        """It exited with 0, and the output is complete."""
        return self.exit_code == 0 and not self.truncated

    @property
    def trouble(self) -> str:
        """What went wrong, for people; empty on success."""
        name = Path(self.argv[0]).name
        if self.missing:
            return f"{name}: {self.missing}"
        if self.timed_out:
            return f"{name}: did not finish within {self.duration_s:.0f} s, killed"
        printed = (self.stderr.strip() or self.stdout.strip())[-200:].decode("utf-8", "replace")
        if self.exit_code is not None and self.exit_code < 0:
            return f"{name}: killed by {_signal_name(-self.exit_code)}" + (f": {printed}" if printed else "")
        if self.exit_code:
            return f"{name}: exit code {self.exit_code}" + (f": {printed}" if printed else "")
        return f"{name}: printed more than {OUTPUT_LIMIT_BYTES >> 20} MiB" if self.truncated else ""


class Commands(Protocol):
    """How a check runs a program. Tests replay recorded output instead."""

    async def run(
        self,
        argv: Sequence[str],
        *,
        timeout_s: float,
        environment: Mapping[str, str] | None = None,
        limit_bytes: int = OUTPUT_LIMIT_BYTES,
    ) -> Output:
        """Run ``argv`` until it exits. ``environment`` is added to ours. Cancelling also kills the process group."""
        ...  # pragma: no cover - the interface

    def which(self, name: str) -> str | None:
        """The path of the program ``name``, or None."""
        ...  # pragma: no cover - the interface


class LocalCommands:
    """Programs of this machine, each in its own process group.

    stop_s: a cancelled program gets SIGTERM this long before SIGKILL (a timed-out one does not): a dcgmi that is
            killed outright leaves its host engine working on the GPUs
    """

    def __init__(self, *, stop_s: float = STOP_S) -> None:
        self._stop_s = stop_s

    async def run(
        self,
        argv: Sequence[str],
        *,
        timeout_s: float,
        environment: Mapping[str, str] | None = None,
        limit_bytes: int = OUTPUT_LIMIT_BYTES,
    ) -> Output:
        started = time.monotonic()
        starting = asyncio.ensure_future(_start(argv, environment))
        try:
            process = await asyncio.shield(starting)
        except asyncio.CancelledError:
            # cancelling a start half-way would wait for its pipes, and so for every child that holds them: let the
            # start finish, which takes milliseconds, then kill the process
            starting.add_done_callback(_kill_group_of)
            await _run_to_end(_end_when_started(starting))
            raise
        except (OSError, ValueError) as error:  # ValueError: a NUL in an argument
            return Output(argv=tuple(argv), missing=explain_not_started(error))
        assert process.stdout is not None and process.stderr is not None  # noqa: S101, PT018 - requested in _start
        out, err = _CappedOutput(limit_bytes), _CappedOutput(limit_bytes)
        drained = asyncio.gather(out.drain(process.stdout), err.drain(process.stderr))
        timed_out = False
        try:
            async with asyncio.timeout(timeout_s):
                # children that the tool left behind may hold its pipes open forever, and wait() waits for the pipes
                while process.returncode is None and not drained.done():
                    await asyncio.wait([drained], timeout=LOOK_S)
                await asyncio.wait([drained], timeout=AFTER_END_S)
                if process.returncode is None:
                    await process.wait()
        except TimeoutError:
            timed_out = process.returncode is None
        except asyncio.CancelledError:
            _signal_group(process, signal.SIGTERM)
            await asyncio.wait([drained], timeout=self._stop_s)
            raise
        finally:
            # also after a normal exit: children that the tool left behind are in its group
            _kill_group(process)
            await _run_to_end(_end_and_close(process, drained))
        return Output(
            argv=tuple(argv),
            exit_code=None if timed_out else process.returncode,
            stdout=bytes(out.data),
            stderr=bytes(err.data),
            timed_out=timed_out,
            truncated=out.truncated or err.truncated,
            duration_s=timeout_s if timed_out else time.monotonic() - started,
        )

    def which(self, name: str) -> str | None:
        return shutil.which(name)


def python_child(module: str, *arguments: str) -> tuple[str, ...]:
    """The command line that runs one of our modules in its own process, where vendor libraries may hang or crash."""
    return (sys.executable, "-X", "utf8", "-P", "-m", module, *arguments)


class _CappedOutput:
    """The first ``limit`` bytes of a pipe; the rest is read and dropped so that the tool does not block."""

    def __init__(self, limit: int) -> None:
        self.data = bytearray()
        self.truncated = False
        self._limit = limit

    async def drain(self, pipe: asyncio.StreamReader) -> None:
        while chunk := await pipe.read(1 << 16):
            room = self._limit - len(self.data)
            self.data += chunk[:room]
            self.truncated = self.truncated or len(chunk) > room


async def _start(argv: Sequence[str], environment: Mapping[str, str] | None) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *argv,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, **SANE_LOCALE, **(environment or {})},
        start_new_session=True,
    )


def explain_not_started(error: OSError | ValueError) -> str:
    """Why the program did not start, for people."""
    if isinstance(error, FileNotFoundError):
        return "not found"
    if isinstance(error, OSError) and error.errno == errno.EPERM:
        # execve(2): the program has file capabilities that this process can never gain
        return "not started: it has file capabilities that this process may not gain; remove them (setcap -r)"
    return str(error)


def _kill_group(process: asyncio.subprocess.Process) -> None:
    _signal_group(process, signal.SIGKILL)


def _signal_group(process: asyncio.subprocess.Process, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


def _kill_group_of(starting: "asyncio.Future[asyncio.subprocess.Process]") -> None:
    if not starting.cancelled() and starting.exception() is None:
        _kill_group(starting.result())
        _close(starting.result())


async def _end(process: asyncio.subprocess.Process) -> None:
    """Wait for a killed process, but not for its pipes: its children are killed too, but are not ours to wait for.
    A process that does not die (uninterruptible sleep) is abandoned."""
    deadline = time.monotonic() + AFTER_KILL_S
    # no event signals the exit except wait()
    while process.returncode is None and time.monotonic() < deadline:  # noqa: ASYNC110 - as above
        await asyncio.sleep(0.01)


async def _end_when_started(starting: "asyncio.Future[asyncio.subprocess.Process]") -> None:
    await asyncio.wait([starting], timeout=START_S)
    if starting.done() and not starting.cancelled() and starting.exception() is None:
        await _end(starting.result())


async def _end_and_close(process: asyncio.subprocess.Process, drained: "asyncio.Future[Any]") -> None:
    await _end(process)
    await asyncio.wait([drained], timeout=AFTER_END_S)
    drained.cancel()
    await asyncio.gather(drained, return_exceptions=True)  # otherwise asyncio logs an unretrieved exception
    _close(process)


async def _run_to_end(tidying: Coroutine[Any, Any, None]) -> None:
    """Run the clean-up, which takes a few seconds at most, to its end before a (repeated) cancellation takes effect."""
    task = asyncio.ensure_future(tidying)
    cancelled = False
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            cancelled = True
    if cancelled:
        raise asyncio.CancelledError
    task.result()


def _close(process: asyncio.subprocess.Process) -> None:
    # asyncio has no public way to release a process that does not die; its pipes must not stay open
    transport = getattr(process, "_transport", None)
    if transport is not None:
        transport.close()


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
