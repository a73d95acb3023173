"""The agent's state on disk: ledgers, stream positions, last results, verdict histories and requests, in one file, so
that related parts are saved together.

A change is saved and published concurrently, because a node whose disk hangs must still be reported. A crash in between
does no harm. If a change was saved but not published, the next agent publishes it. If it was published but not saved,
the next agent finds it in the NodeHealth (higher numbers, cleared findings, another verdict) and continues from that
(ledger_seed.py); published answers to requests never change (request_runner.py).
"""

import asyncio
import contextlib
import fcntl
import logging
import math
import os
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import msgspec

from muster_agent.findings.ledger import OPEN_LIMIT
from muster_agent.findings.stored_ledger import StoredLedger
from muster_agent.findings.verdict_history import VerdictChange
from muster_checks.base.threads import begin_in_thread
from muster_checks.base.vocabulary import Result

log = logging.getLogger(__name__)

VERSION = 1
FILE_NAME = "agent.json"
LOCK_NAME = "agent.lock"
SIZE_LIMIT = 64 << 20  # bytes; the agent writes no larger file
BEHIND_CHANGE_S = 0.05  # combines the changes of a burst of lines into one write
POSITIONS_EVERY_S = 5.0
# for runs without changes: saving each would be 40,000 writes a day. A crash loses at most five minutes of ages and of
# readings of counters
RERUNS_EVERY_S = 300.0
RETRY_S = 5.0
SLOW_S = 10.0  # a write that takes longer is logged


MEASUREMENTS_LIMIT = 64  # per finding of a last result


class StoredCheck(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The state of one check.

    position:    position from which the stream continues; None: the beginning
    last_change: time of the last change of the verdict as published, epoch seconds
    last:        the last result, with its worst :data:`OPEN_LIMIT` findings, including those that are PASS
    ran_at:      its start, epoch seconds
    changes:     changes of the verdict, oldest first
    """

    ledger: StoredLedger
    position: bytes | None = None
    verdict: str = ""
    last_change: float = 0.0
    last: Result | None = None
    ran_at: float = 0.0
    changes: tuple[VerdictChange, ...] = ()

    def __post_init__(self) -> None:
        if self.last is not None and (bounded := _bounded(self.last)) is not self.last:
            msgspec.structs.force_setattr(self, "last", bounded)


class StoredRequest(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The progress of one request, which itself is in the NodeHealth.

    runs, passes:     runs that count
    begun:            how often the next run was started; a run that is interrupted twice counts
    ran_at, finished: epoch seconds; 0: not yet
    verdict, reason, message, without: those of the answer
    """

    id: str
    runs: int = 0
    passes: int = 0
    begun: int = 0
    ran_at: float = 0.0
    finished: float = 0.0
    verdict: str = ""
    reason: str = ""
    message: str = ""
    without: tuple[str, ...] = ()


class StoredState(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """idle_since: epoch seconds; 0: not idle. counters: muster_checks.base.counter_history.History.memory()."""

    version: int
    node: str
    checks: dict[str, StoredCheck]
    requests: tuple[StoredRequest, ...] = ()
    idle_since: float = 0.0
    counters: bytes = b""


def _bounded(result: Result) -> Result:
    """``result`` within the limits; the same object if it is. Its findings are sorted, the worst first."""
    many = len(result.findings) > OPEN_LIMIT
    if not many and all(len(finding.measurements) <= MEASUREMENTS_LIMIT for finding in result.findings):
        return result
    findings = tuple(
        msgspec.structs.replace(finding, measurements=finding.measurements[:MEASUREMENTS_LIMIT])
        for finding in result.findings[:OPEN_LIMIT]
    )
    return msgspec.structs.replace(result, findings=findings)


_decoder = msgspec.json.Decoder(StoredState)


class StateFile:
    """The file ``<directory>/agent.json``. Its methods block. :meth:`lock` ensures that one process uses it."""

    def __init__(self, directory: Path, node: str) -> None:
        self.path = directory / FILE_NAME
        self.node = node
        self._directory = directory
        self._lock: int | None = None
        self.locked = False
        """Whether no other agent can have used the directory since :meth:`lock`."""

    def lock(self) -> bool:
        """Lock the directory; False if another process holds the lock. The kernel releases it when the process ends.

        Returns True and logs a warning if files cannot be created or locked there.
        """
        if self._lock is not None:
            return True
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            handle = os.open(self._directory / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            log.warning("%s: cannot save state, so a restarted agent reads all logs again: %s", self._directory, error)
            return True
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(handle)
            return False
        except OSError as error:
            log.warning("%s: cannot lock the file: %s", self._directory / LOCK_NAME, error)
        else:
            self.locked = True
        self._lock = handle
        return True

    def unlock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def load(self) -> StoredState | None:
        """The saved state, or None. A damaged file is renamed to ``agent.json.bad``. Never raises."""
        try:
            with self.path.open("rb") as file:
                raw = file.read(SIZE_LIMIT + 1)
        except FileNotFoundError:
            return None
        except OSError as error:
            log.warning("%s: cannot read the state, starting without it: %s", self.path, error)
            return None
        try:
            stored = _decoder.decode(raw)
            if stored.version != VERSION:
                raise msgspec.ValidationError(f"version {stored.version}, expected {VERSION}")
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            aside = self.path.with_name(FILE_NAME + ".bad")
            with contextlib.suppress(OSError):
                self.path.replace(aside)
            log.warning("%s: damaged, renamed to %s, starting without it: %s", self.path, aside, error)
            return None
        if stored.node != self.node:
            log.warning("%s: ignored: it belongs to node %s, not %s (cloned disk?)", self.path, stored.node, self.node)
            return None
        return stored

    def save(self, stored: StoredState) -> None:
        """Replace the file atomically and durably. Raises OSError; the old file then remains."""
        self._directory.mkdir(parents=True, exist_ok=True)
        fresh = self.path.with_name(FILE_NAME + ".new")
        handle = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            raw = memoryview(msgspec.json.encode(stored))
            while raw:
                raw = raw[os.write(handle, raw) :]
            os.fsync(handle)
        finally:
            os.close(handle)
        fresh.replace(self.path)
        folder = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


class StateSaver:
    """Saves the state soon after a change, at most every :data:`POSITIONS_EVERY_S` if only positions have moved, and at
    most every :data:`RERUNS_EVERY_S` if runs have changed nothing.

    The short delay after a change leaves the CPU to the PATCH that publishes it. The order does not matter: after a
    crash in between, the agent reads the same lines again and counts the same occurrence.

    ``snapshot`` is called in the event loop, so it never sees a partly processed batch. A thread waits for the disk,
    which may never answer; the end of the agent does not wait for it.
    """

    def __init__(
        self,
        snapshot: Callable[[], StoredState],
        save: Callable[[StoredState], None],
        *,
        on_error: Callable[[], None] = lambda: None,
        slow_s: float = SLOW_S,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self._snapshot = snapshot
        self._save = save
        self._on_error = on_error
        self._slow_s = slow_s
        self._clock = clock
        self._sleep = sleep
        self._wanted = asyncio.Event()
        self._hurried = asyncio.Event()
        self._every_s = math.inf  # the most urgent request since the last save: 0 for a change
        self._failing = ""
        self._under_way: asyncio.Future[None] | None = None
        self._handed_over: StoredState | None = None  # passed to _save; the future above holds the outcome

    def save_now(self) -> None:
        """A finding has changed."""
        self._want(0.0)

    def save_soon(self) -> None:
        """Only positions or counts have changed."""
        self._want(POSITIONS_EVERY_S)

    def save_lazily(self) -> None:
        """A check has run without changes, so only ages and readings have changed."""
        self._want(RERUNS_EVERY_S)

    def _want(self, every_s: float) -> None:
        if every_s < self._every_s:
            self._every_s = every_s
            self._hurried.set()
        self._wanted.set()

    async def run(self) -> None:
        """Run until cancelled; then call :meth:`flush`."""
        last = float("-inf")
        while True:
            await self._wanted.wait()
            self._hurried.clear()
            wait_s = last + self._every_s - self._clock()
            if self._every_s and wait_s > 0 and await self._hurries_within(wait_s):
                continue
            if not self._every_s:
                await self._sleep(BEHIND_CHANGE_S)
            last = self._clock()
            if not await self.flush():
                self._want(POSITIONS_EVERY_S)
                await self._sleep(RETRY_S)

    async def flush(self) -> bool:
        """Save now. False if that fails, which is logged once per reason."""
        self._wanted.clear()
        self._every_s = math.inf
        while self._under_way is not None and not self._under_way.done():  # two threads must not write the same file
            await asyncio.wait([self._under_way])
        stored = self._snapshot()
        if stored == self._handed_over and self._under_way is not None and self._under_way.exception() is None:
            return True
        saving = self._under_way = begin_in_thread(partial(self._save, stored), name="state")
        self._handed_over = stored
        if not (await asyncio.wait([saving], timeout=self._slow_s))[0]:
            self._log_failure(f"the disk has not answered for {self._slow_s:g} s")
            await asyncio.wait([saving])
        try:
            saving.result()
        except (OSError, ValueError) as error:  # ValueError: text that is not UTF-8, as names of files may be
            self._log_failure(str(error))
            return False
        if self._failing:
            log.info("state saved again")
        self._failing = ""
        return True

    def _log_failure(self, why: str) -> None:
        self._on_error()
        if why != self._failing:
            log.warning("cannot save state; if the agent crashes, it reads all logs again: %s", why)
        self._failing = why

    async def _hurries_within(self, seconds: float) -> bool:
        """True as soon as a more urgent save is requested; False after ``seconds``."""
        hurried, over = asyncio.ensure_future(self._hurried.wait()), asyncio.ensure_future(self._sleep(seconds))
        try:
            await asyncio.wait([hurried, over], return_when=asyncio.FIRST_COMPLETED)
            return not over.done()
        finally:
            hurried.cancel()
            over.cancel()
