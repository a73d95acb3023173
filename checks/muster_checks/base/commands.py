"""Runs the tools that checks rely on: with a time-out that ends the whole process group, and bounded output.

Nothing here raises for what a tool does. A tool that is missing, hangs, is killed or prints without end gives an
:class:`Output` that says so, and the check says UNKNOWN.
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
LOOK_S = 0.25  # whether a tool whose pipes are open has ended
AFTER_END_S = 1.0  # what a tool has printed is read at once; only its children may still hold a pipe
STOP_S = 0.5  # for a tool that is called off to end by itself; a job may be waiting for the accelerators
AFTER_KILL_S = 2.0  # a process in uninterruptible sleep does not even die of SIGKILL: it is left behind
START_S = 10.0  # forking takes milliseconds, on a machine that swaps seconds
SANE_LOCALE = {"LC_ALL": "C", "LANG": "C", "LANGUAGE": ""}  # numbers with points, messages in English


class Output(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one command.

    exit_code:  None if it did not end by itself (missing, timed out); negative: minus the signal that killed it
    missing:    why it could not be started; empty if it ran
    timed_out:  it was killed by us after its time
    truncated:  stdout or stderr was longer than the limit; the rest was read and thrown away
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
        """It ended by itself with 0, and all it printed is here."""
        return self.exit_code == 0 and not self.truncated

    @property
    def trouble(self) -> str:
        """What went wrong, for people; empty when nothing did."""
        name = Path(self.argv[0]).name
        if self.missing:
            return f"{name}: {self.missing}"
        if self.timed_out:
            return f"{name}: no end after {self.duration_s:.0f} s, killed"
        said = (self.stderr.strip() or self.stdout.strip())[-200:].decode("utf-8", "replace")
        if self.exit_code is not None and self.exit_code < 0:
            return f"{name}: killed by {_signal_name(-self.exit_code)}" + (f": {said}" if said else "")
        if self.exit_code:
            return f"{name}: exit code {self.exit_code}" + (f": {said}" if said else "")
        return f"{name}: printed more than {OUTPUT_LIMIT_BYTES >> 20} MiB" if self.truncated else ""


class Commands(Protocol):
    """How a check starts a program. Tests replay recorded output in its place."""

    async def run(
        self,
        argv: Sequence[str],
        *,
        timeout_s: float,
        environment: Mapping[str, str] | None = None,
        limit_bytes: int = OUTPUT_LIMIT_BYTES,
    ) -> Output:
        """Run ``argv`` to its end. ``environment`` is added to ours. When cancelled the group is killed, too."""
        ...  # pragma: no cover - the interface

    def which(self, name: str) -> str | None:
        """The path of the program ``name``, or None."""
        ...  # pragma: no cover - the interface


class LocalCommands:
    """Programs of this machine, each in a process group of its own.

    stop_s: what is called off (not what is too late) is told to end so long before it is killed: a dcgmi that is killed
            leaves its host engine at work on the GPUs
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
            # a start cancelled half-way would wait for its pipes, and so for every child that holds them: it is let
            # finish, which takes milliseconds, and what it started is killed
            starting.add_done_callback(_kill_group_of)
            await _run_to_end(_end_when_started(starting))
            raise
        except (OSError, ValueError) as error:  # ValueError: a NUL in an argument
            return Output(argv=tuple(argv), missing=explain_not_started(error))
        assert process.stdout is not None and process.stderr is not None  # noqa: S101, PT018 - asked for in _start
        out, err = _CappedOutput(limit_bytes), _CappedOutput(limit_bytes)
        drained = asyncio.gather(out.drain(process.stdout), err.drain(process.stderr))
        timed_out = False
        try:
            async with asyncio.timeout(timeout_s):
                # children that the tool left behind may hold its pipes open for ever, and wait() waits for the pipes
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
            # also after an orderly end: children it left behind are of the group
            _kill_group(process)
            await _run_to_end(_end_and_close(process, drained))
        return Output(
            argv=tuple(argv),
            exit_code=None if timed_out else process.returncode,
            stdout=bytes(out.data),
            stderr=bytes(err.data),
            timed_out=timed_out,
            truncated=out.truncated or err.truncated,
            duration_s=time.monotonic() - started,
        )

    def which(self, name: str) -> str | None:
        return shutil.which(name)


def python_child(module: str, *arguments: str) -> tuple[str, ...]:
    """The command line of one of our own modules in a process of its own, where vendor libraries may hang or crash."""
    return (sys.executable, "-X", "utf8", "-P", "-m", module, *arguments)


class _CappedOutput:
    """The first ``limit`` bytes of a pipe; the rest is read too, so that the tool does not block on a full pipe."""

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
    """In plain words."""
    if isinstance(error, FileNotFoundError):
        return "not found"
    if isinstance(error, OSError) and error.errno == errno.EPERM:
        # execve(2): a program with file capabilities, in a process that may never have these
        return "not started: it has file capabilities that this process may not gain; take them off (setcap -r)"
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
    """Wait for a process that was killed, not for its pipes: children that hold them are killed, but not ours to wait
    for. What does not die (uninterruptible sleep) is left behind."""
    deadline = time.monotonic() + AFTER_KILL_S
    # its end is told by no event but wait()
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
    await asyncio.gather(drained, return_exceptions=True)  # else asyncio complains of it in the log
    _close(process)


async def _run_to_end(tidying: Coroutine[Any, Any, None]) -> None:
    """Takes seconds at most, so whoever is cancelled (once more) in the midst of it is so afterwards."""
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
    # asyncio offers no public way to let go of a process that will not die; its pipes must not stay open with it
    transport = getattr(process, "_transport", None)
    if transport is not None:
        transport.close()


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
