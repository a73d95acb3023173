"""The stream behind the check ``containerlog``: chooses the pods, reads their logs in turns, and yields signs.

Nothing of the logs is stored. The position is the time up to which they have been read, with the open findings, so a
restart goes on from there. The files are looked at once a second: inotify would need the right to open them, which the
agent has given up, and would report every line of a flood.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Mapping, Sequence
from functools import partial

import msgspec

from muster_checks.base.declaration import AllClear, CheckStream, NodeView, Sign, StepTotals
from muster_checks.base.execution import CannotTell
from muster_checks.base.threads import begin_in_thread
from muster_checks.containerlog import ContainerlogParameters
from muster_checks.containerlog.judge import ContainerLogJudge
from muster_checks.containerlog.log_folder import FolderOpener
from muster_checks.containerlog.log_reader import LogReader, Turn
from muster_checks.containerlog.patterns import Patterns
from muster_checks.containerlog.step_times import StepTimes
from muster_checks.dmesg.open_findings import OpenFinding
from muster_checks.dmesg.sources.position import read_boot_id
from muster_checks.dmesg.sources.timeline import KernelClocks

log = logging.getLogger(__name__)

EVERY_S = 1.0  # between the beginnings of two turns
TURN_S = 10.0  # a disk that takes longer is reported
PODS_EVERY_S = 10.0  # between two requests to the kubelet; sooner when a pod's folder appears
PODS_KEPT_S = 60.0  # a pod that has ended is read for this long, and one that the kubelet cannot report at the moment
DRAIN_S = 5.0  # limit for which a drain waits for the end of the logs, which a flood may never let it reach
LOOKBACK_S = 3600.0  # how far back reading begins without a position
POSITION_EVERY_S = 60.0  # of the logs, while nothing matches: what a restart reads again at most


class LogPosition(msgspec.Struct, frozen=True):
    """until: epoch seconds up to which the logs have been read; findings: those open then, within boot ``boot_id``."""

    boot_id: str
    until: float
    findings: list[OpenFinding]


def open_stream(
    node: NodeView,
    parameters: ContainerlogParameters,
    saved: bytes | None,
    *,
    clocks: KernelClocks | None = None,
    every_s: float = EVERY_S,
) -> "ContainerLogStream":
    """The stream of the logs of a node's pods, continuing from ``saved``."""
    clocks = clocks or KernelClocks()
    boot_id = read_boot_id(node.path("/proc/sys/kernel/random/boot_id"))
    position = _load(saved)
    now = clocks.realtime()
    booted = now - clocks.monotonic()
    until = position.until if position is not None else now - LOOKBACK_S
    same_boot = position is not None and position.boot_id == boot_id
    # an earlier boot's lines say nothing about this one
    start = LogPosition(boot_id, min(max(until, booted), now), position.findings if position and same_boot else [])
    opener = node.pod_logs.opener(parameters.folder) if node.pod_logs is not None else FolderOpener(parameters.folder)
    reader = LogReader(
        opener,
        Patterns(parameters.patterns, parameters.known),
        files=parameters.files,
        namespaces=parameters.namespaces,
        since=start.until,
        steps=StepTimes(parameters.step_pattern) if parameters.step_times else None,
    )
    return ContainerLogStream(node, parameters, reader, start, clocks, every_s)


def _load(saved: bytes | None) -> LogPosition | None:
    if not saved:
        return None
    try:
        return msgspec.json.decode(saved, type=LogPosition)
    except msgspec.DecodeError as error:
        log.warning("cannot decode the saved position in the logs of pods: %s: the last hour is read again", error)
        return None


class ContainerLogStream(CheckStream):
    def __init__(
        self,
        node: NodeView,
        parameters: ContainerlogParameters,
        reader: LogReader,
        start: LogPosition,
        clocks: KernelClocks,
        every_s: float,
    ) -> None:
        self._node = node
        self._all = parameters.pods == "all"
        self._folder = parameters.folder
        self._cpu_share = parameters.cpu_share
        self._reader = reader
        self._judge = ContainerLogJudge(start.findings, show_lines=parameters.show_lines)
        self._clocks = clocks
        self._every_s = every_s
        self._boot_id = start.boot_id
        self._until = self._saved_until = start.until
        self._position = msgspec.json.encode(start)
        self._last_seen: dict[str, float] = {}  # pods with accelerators, and when (monotonic)
        self._pods_due = float("-inf")
        self._pods_trouble = self._trouble = ""
        self._pods_known = float("-inf")  # the time of the kubelet's last answer
        self._woken = asyncio.Event()
        self._drain_waiters: list[tuple[asyncio.Future[None], float]] = []
        self._turn: asyncio.Future[Turn] | None = None  # the one in the thread, and the waiters of before its start
        self._turn_waiters: list[tuple[asyncio.Future[None], float]] = []
        self._turn_began = start.until
        self._step_times: Sequence[StepTotals] = ()
        self._closed = False

    async def events(self) -> AsyncGenerator[list[Sign | AllClear], None]:
        loop = asyncio.get_running_loop()
        try:
            while True:
                self._woken.clear()
                began, now = loop.time(), self._clocks.realtime()
                turn = await self._take_turn()
                events = self._judge.take(turn, now)
                if events:
                    yield events
                self._advance(turn)
                if events or not 0 <= self._until - self._saved_until < POSITION_EVERY_S:
                    self._saved_until = self._until
                    self._position = msgspec.json.encode(LogPosition(self._boot_id, self._until, self._judge.dump()))
                self.caught_up = True
                self._answer(at_end=turn.at_end)
                await self._rest(loop.time() - began, turn.cpu_s)
        finally:
            self._closed = True
            if self._turn is None:
                self._reader.close()
            else:  # not beside the thread, which has files open and opens more
                self._turn.add_done_callback(lambda _: self._reader.close())
            for waiter, _ in self._drain_waiters:
                if not waiter.done():
                    waiter.set_exception(RuntimeError("the stream of container logs has ended"))

    async def _take_turn(self) -> Turn:
        """A turn that takes longer than TURN_S is reported, and goes on: it is judged when it has ended."""
        if self._turn is None:
            pods = None if self._all else await self._pods()
            self._turn_waiters = self._drain_waiters.copy()  # later waiters need a later turn
            self._turn_began = self._clocks.realtime()
            self._turn = begin_in_thread(partial(self._reader.turn, pods), name="containerlog")
        await asyncio.wait([self._turn], timeout=TURN_S)
        if not self._turn.done():
            self._trouble = f"{self._folder}: reading takes longer than {TURN_S:g} s: check the disk"
            return Turn(trouble=self._trouble, at_end=False)
        ended, self._turn = self._turn, None
        try:
            turn = ended.result()
        except OSError as error:
            turn = Turn(trouble=f"{self._folder}: {error.strerror or error}: {_advice(error)}")
        if turn.new_pods and not self._all:  # the kubelet has to name them first
            self._pods_due = float("-inf")
            turn.at_end, turn.behind = False, 0.0
        self._trouble = turn.trouble
        self._step_times = turn.step_times
        return turn

    def _advance(self, turn: Turn) -> None:
        """Move the position up to what has been read for certain: a restart rather reads lines twice than never."""
        if turn.trouble or self._pods_trouble:
            return  # there may be logs of which nothing has been read
        if turn.at_end:
            limit = self._turn_began + self._every_s
            self._until = max([self._turn_began, *(hit.at for hit in turn.hits.values() if hit.at <= limit)])
        else:
            self._until = max(self._until, turn.behind)

    async def _pods(self) -> frozenset[str]:
        """The pods to read. The kubelet is asked when it is time."""
        now = self._clocks.monotonic()
        if now >= self._pods_due:
            self._pods_due = now + PODS_EVERY_S
            try:
                self._last_seen |= dict.fromkeys(await self._accelerator_pods(), now)
                self._pods_trouble, self._pods_known = "", now
            except CannotTell as error:
                self._pods_trouble = error.message
        self._last_seen = {pod: at for pod, at in self._last_seen.items() if now - at < PODS_KEPT_S}
        return frozenset(self._last_seen)

    async def _accelerator_pods(self) -> frozenset[str]:
        if self._node.pod_logs is None:
            raise CannotTell("only an agent knows which pods hold accelerators: set pods=all and namespaces")
        return await self._node.pod_logs.accelerator_pods()

    async def _rest(self, passed_s: float, cpu_s: float) -> None:
        """Wait for the next turn: at least until the turn's processor time is within its share."""
        await asyncio.sleep(max(0.0, cpu_s / self._cpu_share - passed_s))
        if not self._drain_waiters:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, self._every_s - passed_s)):
                    await self._woken.wait()

    def _answer(self, *, at_end: bool) -> None:
        """Answer the waiters of before the turn if it has read the logs to their end, and all after their time."""
        now = asyncio.get_running_loop().time()
        for entry in self._drain_waiters.copy():
            waiter, until = entry
            if (at_end and entry in self._turn_waiters) or now >= until:
                self._drain_waiters.remove(entry)
                if not waiter.done():
                    waiter.set_result(None)

    def position(self) -> bytes:
        return self._position

    async def drain(self) -> None:
        """See :meth:`CheckStream.drain`; in a flood, it returns after :data:`DRAIN_S` before the end is reached."""
        if self._closed:
            raise RuntimeError("the stream of container logs has ended")
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[None] = loop.create_future()
        self._drain_waiters.append((waiter, loop.time() + DRAIN_S))
        self._pods_due = float("-inf")
        self._woken.set()
        await waiter

    def forget(self, component: str, reasons: tuple[str, ...]) -> None:
        self._judge.forget(component, reasons)

    def counts(self) -> Mapping[str, int]:
        return msgspec.structs.asdict(self._reader.counts)

    def step_times(self) -> Sequence[StepTotals]:
        return self._step_times

    def health(self) -> str:
        unknown = self._clocks.monotonic() - self._pods_known >= PODS_KEPT_S
        return self._trouble or (self._pods_trouble if unknown else "")


def _advice(error: OSError) -> str:
    if isinstance(error, FileNotFoundError):
        return "mount the kubelet's log folder (the chart does if checks.containerlog.enabled is true), or set folder"
    if isinstance(error, PermissionError):
        return "start the agent as root (with run_as, it keeps a helper that opens log files)"
    return "check the disk"
