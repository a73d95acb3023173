"""Executes ``NodeHealth.spec.requests``. The checks of a request run once per id, also across restarts.

Each request has its own task, so a request that waits for an idle node does not delay others; heavy checks run one by
one. The progress of a request is in the state file, the request itself in the spec. A run counts when it has ended. A
run that is interrupted by the end of the agent is repeated once. An answer never changes, also not one that an earlier
agent has published.
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
from muster_agent.idle.occupancy import RunScope
from muster_checks.base.declaration import Cost, Parameters
from muster_checks.base.execution import NOT_INSTALLED
from muster_checks.base.vocabulary import Result, Verdict, severity, shorten
from muster_kube.api.times import rfc3339, seconds
from muster_kube.nodehealth import REQUESTS_LIMIT, CheckRequest, RequestAnswer

log = logging.getLogger(__name__)

LOOK_S = 10.0  # interval of retries on a busy node
PATIENCE_S = 3600.0  # wait for an idle node if the request has no expires
ID_LIMIT = 128  # characters, as in NodeHealth's schema
TRIES = 2  # per run, so that a check that crashes its node does not do so forever
MARK_S = 1.0  # a run is saved as started after this time; most have ended by then
# ids are kept for a while, because lists from an API server's cache may lack a request temporarily or still have it
REMEMBERED_S = 600.0
REMEMBERED = 64
NOT_INSTALLED_REASON = "NotInstalled"  # of a PASS without some of the checks
STOPPING = "Stopping"  # reason of a result that the end of the agent caused

RunCheck = Callable[[NodeCheck, Parameters, bool, RunScope], Awaitable[CheckOutcome]]
"""Runs a check when it is its turn. The third argument allows heavy checks on a busy node, the fourth on a node whose
work does not concern them."""


class _Entry:
    """The state of one request id.

    request: as first seen, because edits have no effect; None while the spec does not contain it
    cut_off: how often the next run was interrupted by the end of earlier agents
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
    """The node was busy for as long as the request could wait. The message names the work on it."""


class _Expired(Exception):
    """The request expired before its first run."""


class RequestRunner:
    """The requests of one node.

    run_check: see :data:`RunCheck`
    reporter:  is notified of changes to save and publish
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
        """Continue from the result of :meth:`stored` before a restart."""
        self._entries = {state.id: _Entry(state, self._clock.monotonic()) for state in stored}

    def apply_requests(self, requests: Sequence[CheckRequest], reported: Sequence[RequestAnswer] = ()) -> None:
        """Apply the current ``spec.requests`` and ``status.answers``. Published answers are final, even if the state
        file does not contain them. Never raises."""
        now = self._clock.monotonic()
        self._forget_old(now)
        requested = {each.id: each for each in reversed(requests[:REQUESTS_LIMIT]) if 0 < len(each.id) <= ID_LIMIT}
        self._requested = tuple(reversed(requested))
        for name in self._requested:
            entry = self._entries.get(name)
            if entry is None:
                entry = self._entries[name] = _Entry(StoredRequest(id=name), now)
            if entry.request is None:
                entry.request, entry.gone_since, entry.patient_since = requested[name], None, now
        for answer in reported:
            self._adopt(answer)
        for name, entry in self._entries.items():
            if name not in requested and entry.gone_since is None:
                entry.request, entry.gone_since = None, now
        self._wake.set()

    def answers(self) -> tuple[RequestAnswer, ...]:
        """The answers to publish, in the order of the requests. The progress of a request is not published, because
        that would be a write for every run."""
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
                without=state.without,
            )
            for state in states
            if state.finished
        )

    def stored(self) -> tuple[StoredRequest, ...]:
        """For the state file."""
        states = (entry.state for entry in self._entries.values())
        return tuple(state for state in states if state.runs or state.begun or state.finished)

    async def run(self) -> None:
        """Execute requests until cancelled."""
        try:
            while True:
                self._wake.clear()
                for entry in self._entries.values():
                    if entry.task is not None:
                        if entry.request is None and not entry.task.cancelling():
                            entry.task.cancel()
                    elif entry.request is not None and not entry.state.finished:
                        entry.task = asyncio.create_task(self._execute(entry, entry.request))
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

    async def _execute(self, entry: _Entry, request: CheckRequest) -> None:
        try:
            await self._run_series(entry, read_request(request, self._checks))
        except BadRequest as error:
            self._finish(entry, Verdict.UNKNOWN, "BadRequest", str(error))
        except _Expired:
            self._finish(entry, Verdict.UNKNOWN, "Expired", f"did not start by {request.expires}")
        except _Busy as busy:
            self._finish(entry, Verdict.UNKNOWN, "Busy", str(busy))
        except asyncio.CancelledError:
            entry.note(begun=entry.cut_off)  # cancelled, not interrupted
            raise
        except Exception as error:
            log.exception("request %s failed", shorten(request.id))
            self._finish(entry, Verdict.UNKNOWN, "RequestFailed", f"{type(error).__name__}: {error}")

    async def _run_series(self, entry: _Entry, series: RunSeries) -> None:
        if entry.cut_off >= TRIES:
            message = f"interrupted {TRIES} times by the end of the agent or a reboot of its node"
            self._count(
                entry, series, [Result(check="", verdict=Verdict.UNKNOWN, reason="Interrupted", message=message)]
            )
        while not entry.state.finished:
            if entry.state.runs and series.interval_s:
                # at most the interval, in case the clock was set
                rest_s = entry.state.ran_at + series.interval_s - self._clock.wall()
                await self._clock.sleep(max(0.0, min(rest_s, series.interval_s)))
            entry.patient_since = self._clock.monotonic()
            results = [await self._result(entry, series, *each) for each in series.checks]
            self._count(entry, series, results)

    async def _result(self, entry: _Entry, series: RunSeries, running: NodeCheck, parameters: Parameters) -> Result:
        """The result of one check of a run, as soon as the node admits it. Raises _Busy, _Expired."""
        while True:
            if running.check.cost is Cost.HEAVY:
                async with self._heavy:
                    answered = await self._run_now(entry, series, running, parameters)
            else:
                answered = await self._run_now(entry, series, running, parameters)
            if answered.result.reason == STOPPING:
                entry.note(begun=entry.cut_off)
                self._reporter.report_change()
                await asyncio.Event().wait()  # the agent is ending; the run is repeated after its restart
            if not answered.refused:
                return answered.result
            entry.note(begun=entry.cut_off)  # refused or cancelled, so not a run
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
            answered = await self._run_check(running, parameters, series.force, series.scope)
        finally:
            marking.cancel()
        entry.begun_here = entry.begun_here or not answered.refused
        return answered

    def _mark_begun(self, entry: _Entry) -> None:
        if entry.state.begun > entry.cut_off:
            return  # marked by an earlier check of this run
        entry.note(begun=entry.cut_off + 1)
        self._reporter.report_change()

    def _wait_left_s(self, entry: _Entry, series: RunSeries) -> float:
        if series.expires:
            return series.expires - self._clock.wall()
        return entry.patient_since + PATIENCE_S - self._clock.monotonic()

    def _count(self, entry: _Entry, series: RunSeries, results: Sequence[Result]) -> None:
        """Count a run and, if it is the last one, finish the request. Both are saved together."""
        absent = {each.check: each.message for each in results if _is_absent(series, each)}
        bad = _bad(series, [each for each in results if each.check not in absent])
        absent |= dict.fromkeys(series.disabled, "not enabled on this node")
        runs, passes = entry.state.runs + 1, entry.state.passes + (bad is None)
        entry.cut_off = 0
        without = tuple(sorted({*entry.state.without, *absent}))
        entry.note(runs=runs, passes=passes, begun=0, ran_at=self._clock.wall(), without=without)
        if passes >= series.passes:
            why = "; ".join(f"{check}: {message}" for check, message in absent.items())
            self._finish(entry, Verdict.PASS, NOT_INSTALLED_REASON if without else "", why)
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
            "request %s finished with %s, %d of %d runs passed%s",
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
            without=answer.without,
        )

    def _forget_old(self, now: float) -> None:
        gone = {name: entry.gone_since for name, entry in self._entries.items() if entry.gone_since is not None}
        newest = sorted(gone, key=lambda name: -gone[name])[:REMEMBERED]
        for name, since in gone.items():
            if self._entries[name].task is None and (now - since > REMEMBERED_S or name not in newest):
                del self._entries[name]


def _is_absent(series: RunSeries, result: Result) -> bool:
    return result.check in series.optional and result.verdict is Verdict.UNKNOWN and result.reason in NOT_INSTALLED


def _bad(series: RunSeries, results: Sequence[Result]) -> Result | None:
    """Why a run did not pass; None if it passed."""
    if not series.sees:
        return _worst(result for result in results if result.verdict is not Verdict.PASS)
    found = [each for result in results if (each := _about(series.sees, result)) is not None]
    passed = {each.component for result in results for each in result.findings if each.verdict is Verdict.PASS}
    if missing := [component for component in series.sees if component not in passed]:
        # a component without a finding does not pass: an IPU is invisible when its partition is gone
        message = f"{', '.join(missing)}: this run has no result for it"
        found.append(Result(check=results[0].check, verdict=Verdict.UNKNOWN, reason="NotSeen", message=message))
    return _worst(found)


def _about(sees: Sequence[str], result: Result) -> Result | None:
    """The worst problem of these components or of the host."""
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
