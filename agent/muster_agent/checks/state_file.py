"""The agent's memory on disk: ledgers, stream positions, last results, the history of verdicts and what came of
requests in one file, so that an effect and what caused it are kept or lost together.

A change is saved beside its publication, neither waiting for the other: a node whose disk hangs is the very node that
must be reported. A crash in between does no harm. Saved but not told: the next start compares with the NodeHealth and
tells. Told but not saved: the next start finds told what it does not have (higher numbers, an end of what it holds
open, another verdict) and goes on from that (ledger_seed.py); an answer that was told is never given anew
(request_runner.py).
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

from muster_agent.findings.ledger import OPEN_LIMIT, StoredLedger
from muster_agent.findings.verdict_history import VerdictChange
from muster_checks.base.threads import begin_in_thread
from muster_checks.base.vocabulary import Result

log = logging.getLogger(__name__)

VERSION = 1
FILE_NAME = "agent.json"
LOCK_NAME = "agent.lock"
SIZE_LIMIT = 64 << 20  # bytes; what is larger was not written by us
BEHIND_CHANGE_S = 0.05  # also gathers what a burst of lines changes into one write
POSITIONS_EVERY_S = 5.0
# a run that found what the one before it found costs a node's disk nothing: a day of light checks, each once a minute,
# would be 40,000 writes; what a crash may take is five minutes of ages and of counters' readings
RERUNS_EVERY_S = 300.0
RETRY_S = 5.0
SLOW_S = 10.0  # a disk that takes longer is told of


MEASUREMENTS_LIMIT = 64  # of one finding of a last result


class StoredCheck(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """position: where the stream goes on; None: from the beginning. last_change: as published, epoch seconds.

    last, ran_at: the last run, what is sound included (the worst :data:`OPEN_LIMIT` of it), and when it began (epoch
                  seconds); changes: of the verdict, oldest first
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
    """What has come of one request so far; what was asked stands in the NodeHealth.

    runs, passes: that count. begun: how often the run after those was begun; a run that is cut off twice counts.
    ran_at, finished: epoch seconds; 0: not yet. verdict, reason, message: the answer's.
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


class StoredState(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """idle_since: epoch seconds, 0: not idle. counters: muster_checks.base.counter_history.History.memory()."""

    version: int
    node: str
    checks: dict[str, StoredCheck]
    requests: tuple[StoredRequest, ...] = ()
    idle_since: float = 0.0
    counters: bytes = b""


def _bounded(result: Result) -> Result:
    """The same object where nothing is too long. Findings are the worst first already."""
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
    """``<directory>/agent.json``. ``save`` and ``load`` block; one process at a time, see :meth:`lock`."""

    def __init__(self, directory: Path, node: str) -> None:
        self.path = directory / FILE_NAME
        self.node = node
        self._directory = directory
        self._lock: int | None = None

    def lock(self) -> bool:
        """True if this process is the only one that uses the folder; False while another one is. Freed by death.

        Where files cannot be made or locked there is nothing to protect: True, with a log line.
        """
        if self._lock is not None:
            return True
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            handle = os.open(self._directory / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            log.warning("%s: cannot be used, so a restart reads the logs anew: %s", self._directory, error)
            return True
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(handle)
            return False
        except OSError as error:
            log.warning("%s: cannot be locked: %s", self._directory / LOCK_NAME, error)
        self._lock = handle
        return True

    def unlock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def load(self) -> StoredState | None:
        """What was saved, or None. A damaged file is kept beside as ``agent.json.bad``; never raises."""
        try:
            with self.path.open("rb") as file:
                raw = file.read(SIZE_LIMIT + 1)
        except FileNotFoundError:
            return None
        except OSError as error:
            log.warning("%s: cannot be read; starting without it: %s", self.path, error)
            return None
        try:
            stored = _decoder.decode(raw)
            if stored.version != VERSION:
                raise msgspec.ValidationError(f"version {stored.version}, expected {VERSION}")
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            aside = self.path.with_name(FILE_NAME + ".bad")
            with contextlib.suppress(OSError):
                self.path.replace(aside)
            log.warning("%s: damaged, kept as %s; starting without it: %s", self.path, aside, error)
            return None
        if stored.node != self.node:
            log.warning("%s: is of node %s, not of %s (a cloned disk?); ignored", self.path, stored.node, self.node)
            return None
        return stored

    def save(self, stored: StoredState) -> None:
        """Replace the file atomically and durably. Raises OSError; the old content then stands."""
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
    """Saves right behind a change, positions alone every :data:`POSITIONS_EVERY_S` at most, runs that changed nothing
    every :data:`RERUNS_EVERY_S`.

    Behind, because the PATCH that tells of the change has the processors to itself for that moment. Nothing hangs on
    the order: dying in between, the agent reads the same lines again and counts the same firing.

    ``snapshot`` is called in the loop, so it sees no half-taken batch; the disk is waited for in a thread, one at a
    time, that holds up nobody's end: a disk may never answer.
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
        self._every_s = math.inf  # the most urgent wish since the last save: 0 for a change
        self._failing = ""
        self._under_way: asyncio.Future[None] | None = None
        self._handed_over: StoredState | None = None  # to the disk; the future above knows what came of it

    def save_now(self) -> None:
        """A finding has changed."""
        self._want(0.0)

    def save_soon(self) -> None:
        """Only positions or counts have moved."""
        self._want(POSITIONS_EVERY_S)

    def save_lazily(self) -> None:
        """A check has found what it found before: only ages and readings have moved."""
        self._want(RERUNS_EVERY_S)

    def _want(self, every_s: float) -> None:
        if every_s < self._every_s:
            self._every_s = every_s
            self._hurried.set()
        self._wanted.set()

    async def run(self) -> None:
        """Forever; cancel to stop, then :meth:`flush`."""
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
        """Save now; False (logged once for each new reason) when the disk will not take it."""
        self._wanted.clear()
        self._every_s = math.inf
        while self._under_way is not None and not self._under_way.done():  # two would write one file at once
            await asyncio.wait([self._under_way])
        stored = self._snapshot()
        if stored == self._handed_over and self._under_way is not None and self._under_way.exception() is None:
            return True
        saving = self._under_way = begin_in_thread(partial(self._save, stored), name="state")
        self._handed_over = stored
        if not (await asyncio.wait([saving], timeout=self._slow_s))[0]:
            self._log_failure(f"no answer from the disk for {self._slow_s:g} s")
            await asyncio.wait([saving])
        try:
            saving.result()
        except OSError as error:
            self._log_failure(str(error))
            return False
        if self._failing:
            log.info("state is saved again")
        self._failing = ""
        return True

    def _log_failure(self, why: str) -> None:
        self._on_error()
        if why != self._failing:
            log.warning("state cannot be saved; should the agent die, logs are read anew: %s", why)
        self._failing = why

    async def _hurries_within(self, seconds: float) -> bool:
        """True as soon as something more urgent is wanted; False when the time is over."""
        hurried, over = asyncio.ensure_future(self._hurried.wait()), asyncio.ensure_future(self._sleep(seconds))
        try:
            await asyncio.wait([hurried, over], return_when=asyncio.FIRST_COMPLETED)
            return not over.done()
        finally:
            hurried.cancel()
            over.cancel()
