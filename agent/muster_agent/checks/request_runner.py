"""Carries out ``NodeHealth.spec.requests``: an id makes its checks run once, whatever is restarted in between.

Each request waits in a task of its own, so one that waits for an idle node holds up no other; heavy checks run one
after another. What has come of a request is kept in the state file, what was asked is read from the spec. A run counts
when it has ended; one that was cut off by the end of the agent is done again, once. An answer that was given, or was
told by an agent before this one, never changes.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

import msgspec

from muster_agent.checks.check_outcome import CheckOutcome
from muster_agent.checks.node_check import NodeCheck
from muster_agent.checks.reporter import NO_REPORTER, Reporter
from muster_agent.checks.request_parser import BadRequest, RunSeries, read_request
from muster_agent.checks.state_file import StoredRequest
from muster_agent.clock import SYSTEM_CLOCK, AgentClock
from muster_agent.findings.ledger import REASON_LIMIT
from muster_checks.base.declaration import Cost, Parameters
from muster_checks.base.vocabulary import Result, Verdict, severity, shorten
from muster_kube.api.times import rfc3339, seconds
from muster_kube.nodehealth import REQUESTS_LIMIT, CheckRequest, RequestAnswer

log = logging.getLogger(__name__)

LOOK_S = 10.0  # how often a busy node is looked at again
PATIENCE_S = 3600.0  # for an idle node, where the request does not say
ID_LIMIT = 128  # characters, as NodeHealth's schema has it
TRIES = 2  # of one run: a check that takes its node down must not do so for ever
MARK_S = 1.0  # a run that has gone on so long is noted as begun; most are over by then
# a list from an API server's cache may lack a request for a moment, or still have it: an id is remembered for a while
REMEMBERED_S = 600.0
REMEMBERED = 64
STOPPING = "Stopping"  # the reason of a result that an agent gives because it ends: no word about the node

RunCheck = Callable[[NodeCheck, Parameters, bool, str], Awaitable[CheckOutcome]]
"""Runs a check in its turn; heavy ones also beside somebody's work (the third argument), or beside that of pods whose
``namespace/name`` begins so (the fourth)."""


class _Entry:
    """One request, by its id.

    request: None while nobody asks; as first seen: an edit makes it no other one
    cut_off: how often agents before this one were cut off in the run that comes now
    """

    def __init__(self, state: StoredRequest, now: float) -> None:
        self.state = state
        self.request: CheckRequest | None = None
        self.task: asyncio.Task[None] | None = None
        self.patient_since = now
        self.gone_since: float | None = None
        self.begun_here = False
        self.cut_off = state.begun

    @property
    def begun(self) -> bool:
        return self.begun_here or self.state.runs > 0 or self.state.begun > 0

    def note(self, **changes: object) -> None:
        self.state = msgspec.structs.replace(self.state, **changes)


class _Busy(Exception):
    """The node was not idle for as long as the request could wait. ``str()``: whose work it was."""


class _Expired(Exception):
    """Too late to begin."""


class RequestRunner:
    """The requests of one node.

    run_check: see :data:`RunCheck`
    reporter:  something is to be saved, and maybe to be published
    """

    def __init__(
        self,
        run_check: RunCheck,
        checks: Mapping[str, NodeCheck],
        reporter: Reporter = NO_REPORTER,
        clock: AgentClock = SYSTEM_CLOCK,
    ) -> None:
        self._run_check = run_check
        self._checks = checks
        self._reporter = reporter
        self._clock = clock
        self._entries: dict[str, _Entry] = {}
        self._requested: tuple[str, ...] = ()
        self._heavy = asyncio.Lock()
        self._wake = asyncio.Event()

    def restore(self, stored: Iterable[StoredRequest]) -> None:
        """Go on from what :meth:`stored` gave before a restart."""
        self._entries = {state.id: _Entry(state, self._clock.monotonic()) for state in stored}

    def apply_requests(self, requests: Sequence[CheckRequest], reported: Sequence[RequestAnswer] = ()) -> None:
        """``spec.requests`` as they are now, and ``status.answers`` beside them: an answer that stands there was given,
        also when the state file does not know of it. Never raises."""
        now = self._clock.monotonic()
        self._forget_old(now)
        asked = {each.id: each for each in reversed(requests[:REQUESTS_LIMIT]) if 0 < len(each.id) <= ID_LIMIT}
        self._requested = tuple(reversed(asked))
        for name in self._requested:
            entry = self._entries.get(name)
            if entry is None:
                entry = self._entries[name] = _Entry(StoredRequest(id=name), now)
            if entry.request is None:
                entry.request, entry.gone_since, entry.patient_since = asked[name], None, now
        for answer in reported:
            self._adopt(answer)
        for name, entry in self._entries.items():
            if name not in asked and entry.gone_since is None:
                entry.request, entry.gone_since = None, now
        self._wake.set()

    def answers(self) -> tuple[RequestAnswer, ...]:
        """What is published: the answers to those who ask now, in their order. How far a request under way has come
        is no answer, and would be a write for every run."""
        states = [self._entries[name].state for name in self._requested]
        return tuple(
            RequestAnswer(
                id=state.id,
                verdict=state.verdict,
                runs=state.runs,
                passes=state.passes,
                finished=rfc3339(state.finished),
                reason=state.reason,
                message=state.message,
            )
            for state in states
            if state.finished
        )

    def stored(self) -> tuple[StoredRequest, ...]:
        """For the state file."""
        states = (entry.state for entry in self._entries.values())
        return tuple(state for state in states if state.runs or state.begun or state.finished)

    async def run(self) -> None:
        """Carry them out, for ever."""
        try:
            while True:
                self._wake.clear()
                for entry in self._entries.values():
                    if entry.task is not None:
                        if entry.request is None and not entry.task.cancelling():
                            entry.task.cancel()
                    elif entry.request is not None and not entry.state.finished:
                        entry.task = asyncio.create_task(self._carry_out(entry, entry.request))
                        entry.task.add_done_callback(lambda _, entry=entry: self._ended(entry))  # type: ignore[misc]
                await self._wake.wait()
        finally:
            tasks = [entry.task for entry in self._entries.values() if entry.task is not None]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _ended(self, entry: _Entry) -> None:
        entry.task = None
        self._wake.set()

    async def _carry_out(self, entry: _Entry, request: CheckRequest) -> None:
        try:
            await self._run_series(entry, read_request(request, self._checks))
        except BadRequest as error:
            self._finish(entry, Verdict.UNKNOWN, "BadRequest", str(error))
        except _Expired:
            self._finish(entry, Verdict.UNKNOWN, "Expired", f"had not begun by {request.expires}")
        except _Busy as busy:
            self._finish(entry, Verdict.UNKNOWN, "Busy", str(busy))
        except asyncio.CancelledError:
            entry.note(begun=entry.cut_off)  # called off, not cut off
            raise
        except Exception as error:
            log.exception("request %s has broken", shorten(request.id))
            self._finish(entry, Verdict.UNKNOWN, "RequestFailed", f"{type(error).__name__}: {error}")

    async def _run_series(self, entry: _Entry, series: RunSeries) -> None:
        if entry.cut_off >= TRIES:
            message = f"cut off {TRIES} times by the end of the agent or of its node"
            self._count(
                entry, series, [Result(check="", verdict=Verdict.UNKNOWN, reason="Interrupted", message=message)]
            )
        while not entry.state.finished:
            if entry.state.runs and series.interval_s:
                # no longer than the interval, should the clock have been set
                rest_s = entry.state.ran_at + series.interval_s - self._clock.wall()
                await self._clock.sleep(max(0.0, min(rest_s, series.interval_s)))
            entry.patient_since = self._clock.monotonic()
            results = [await self._result(entry, series, *each) for each in series.checks]
            self._count(entry, series, results)

    async def _result(self, entry: _Entry, series: RunSeries, running: NodeCheck, parameters: Parameters) -> Result:
        """What one check of a run came to, once the node had time for it. Raises _Busy, _Expired."""
        while True:
            if running.check.cost is Cost.HEAVY:
                async with self._heavy:
                    answered = await self._run_now(entry, series, running, parameters)
            else:
                answered = await self._run_now(entry, series, running, parameters)
            if answered.result.reason == STOPPING:
                entry.note(begun=entry.cut_off)
                self._reporter.report_change()
                await asyncio.Event().wait()  # the end has begun: what is called off now goes on after the restart
            if not answered.refused:
                return answered.result
            entry.note(begun=entry.cut_off)  # refused, or it gave way: in either case no run
            await self._clock.sleep(max(0.0, min(LOOK_S, self._wait_left_s(entry, series))))
            if self._wait_left_s(entry, series) <= 0:
                raise _Busy(answered.why)

    async def _run_now(
        self, entry: _Entry, series: RunSeries, running: NodeCheck, parameters: Parameters
    ) -> CheckOutcome:
        if not entry.begun and series.expires and self._clock.wall() >= series.expires:
            raise _Expired
        marking = asyncio.get_running_loop().call_later(MARK_S, self._mark_begun, entry)
        try:
            answered = await self._run_check(running, parameters, series.force, series.beside)
        finally:
            marking.cancel()
        entry.begun_here = entry.begun_here or not answered.refused
        return answered

    def _mark_begun(self, entry: _Entry) -> None:
        if entry.state.begun > entry.cut_off:
            return  # an earlier check of this run was noted
        entry.note(begun=entry.cut_off + 1)
        self._reporter.report_change()

    def _wait_left_s(self, entry: _Entry, series: RunSeries) -> float:
        if series.expires:
            return series.expires - self._clock.wall()
        return entry.patient_since + PATIENCE_S - self._clock.monotonic()

    def _count(self, entry: _Entry, series: RunSeries, results: Sequence[Result]) -> None:
        """One more run is over. What it decides is kept with it: an answer is saved with its counts, or not at all."""
        bad = _bad(series, results)
        runs, passes = entry.state.runs + 1, entry.state.passes + (bad is None)
        entry.cut_off = 0
        entry.note(runs=runs, passes=passes, begun=0, ran_at=self._clock.wall())
        if passes >= series.passes:
            self._finish(entry, Verdict.PASS)
        elif bad is not None and series.runs - runs < series.passes - passes:
            named = bad.check if len(series.checks) > 1 else ""
            text = ": ".join(part for part in (named, bad.message) if part)
            self._finish(entry, bad.verdict, bad.reason, text)
        else:
            self._reporter.report_change()

    def _finish(self, entry: _Entry, verdict: Verdict, reason: str = "", message: str = "") -> None:
        entry.note(
            begun=0,
            finished=self._clock.wall(),
            verdict=verdict.value,
            reason=reason[:REASON_LIMIT],
            message=shorten(message),
        )
        state = entry.state
        why = ": ".join(part for part in (state.reason, state.message) if part)
        log.info(
            "request %s is answered %s, %d of %d runs passed%s",
            shorten(state.id),
            state.verdict,
            state.passes,
            state.runs,
            f": {why}" if why else "",
        )
        self._reporter.report_change()

    def _adopt(self, answer: RequestAnswer) -> None:
        entry, finished = self._entries.get(answer.id), seconds(answer.finished)
        if entry is None or entry.state.finished or entry.begun_here or not finished:
            return
        if answer.verdict not in list(Verdict) or entry.task is not None:
            return
        entry.state = StoredRequest(
            id=answer.id,
            runs=answer.runs,
            passes=answer.passes,
            finished=finished,
            verdict=answer.verdict,
            reason=answer.reason,
            message=answer.message,
        )

    def _forget_old(self, now: float) -> None:
        gone = {name: entry.gone_since for name, entry in self._entries.items() if entry.gone_since is not None}
        newest = sorted(gone, key=lambda name: -gone[name])[:REMEMBERED]
        for name, since in gone.items():
            if self._entries[name].task is None and (now - since > REMEMBERED_S or name not in newest):
                del self._entries[name]


def _bad(series: RunSeries, results: Sequence[Result]) -> Result | None:
    """Why a run is no pass, the worst first; None: it is one."""
    if not series.sees:
        return _worst(result for result in results if result.verdict is not Verdict.PASS)
    found = [each for result in results if (each := _about(series.sees, result)) is not None]
    told = {each.component for result in results for each in result.findings if each.verdict is Verdict.PASS}
    if missing := [component for component in series.sees if component not in told]:
        # what is not seen is no PASS of it: an IPU is gone from sight when its partition is
        message = f"{', '.join(missing)}: not seen by this run"
        found.append(Result(check=results[0].check, verdict=Verdict.UNKNOWN, reason="NotSeen", message=message))
    return _worst(found)


def _about(sees: Sequence[str], result: Result) -> Result | None:
    """What is not well of these components or of the host that sees them."""
    others = [each for each in result.findings if each.verdict not in (Verdict.PASS, Verdict.SKIP)]
    ours = [each for each in others if each.component in (*sees, "host")]
    if ours:
        worst = max(ours, key=lambda each: severity(each.verdict))
        return msgspec.structs.replace(
            result, verdict=worst.verdict, reason=worst.reason, message=f"{worst.component}: {worst.message}"
        )
    return None if others or result.verdict is Verdict.PASS else result


def _worst(results: Iterable[Result]) -> Result | None:
    return max(results, key=lambda result: severity(result.verdict), default=None)
