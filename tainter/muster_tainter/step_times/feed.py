"""Judges running jobs by their step times while this process leads, window after window.

Windows follow the clock and do not overlap, so the bound on false blame holds for a day, and a new leader that judges
a window again comes to the same verdicts. One job is judged at a time, in a child process, with a share of a core.
"""

import asyncio
import logging
import math
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable

from muster_kube.api.client import KubeClient
from muster_kube.api.errors import ApiError, ConfigError
from muster_kube.controller.backoff import Backoff
from muster_tainter.fleet.interface import Fleet
from muster_tainter.fleet.replica import Replica
from muster_tainter.metrics import TainterMetrics
from muster_tainter.policy.rules import Policy
from muster_tainter.policy.sections.heavy_checks import DAY_S
from muster_tainter.policy.sections.sources import StepTimesSource
from muster_tainter.sources.follower import Follower, ended, until_set
from muster_tainter.sources.http_client import NS, AnswerTooLarge, SourceError
from muster_tainter.sources.prometheus.client import PrometheusClient
from muster_tainter.sources.source_status import BACKOFF, SourceMetrics, SourceStatus
from muster_tainter.step_times.job_queries import RANKS_LIMIT, JobKey, find_jobs, list_query, series_query, step_s
from muster_tainter.step_times.job_series import SeriesLabels
from muster_tainter.step_times.job_verdict import UNUSABLE, JobQuestion, JobVerdict
from muster_tainter.step_times.judge import JudgeFailed, judge_apart
from muster_tainter.step_times.metrics import FAILED, LEFT_OUT, TOO_LARGE, StepTimesMetrics
from muster_tainter.step_times.reporter import StragglerReporter
from muster_tainter.stragglers.verdict import NOBODY
from muster_tainter.task_rounds import yield_to_taints

log = logging.getLogger(__name__)

NAME = "stepTimes"  # of the source, in metrics and logs
SETTLE_S = 30.0  # a scrape takes at most its interval to be in the answers, and 30 s is a usual one
LOOK_S = 60.0  # the clock may have been set
BODY_LIMIT = 20 << 20  # bytes of an answer: as long as VALUES_LIMIT and the labels of RANKS_LIMIT ranks take
TRIES = 3  # of one job, if Prometheus or the API server fails for it
LOGGED_JOBS = 2000
CPU_SHARE = 0.1  # of a core, for the child processes

Judge = Callable[[JobQuestion, bytearray], Awaitable[JobVerdict]]


class StepTimesFeed:
    """settle_s: how long after its end a window is judged; look_s: how often at least to look whether one is over

    cpu_share: of a core, on average
    """

    def __init__(
        self,
        client: KubeClient,
        fleet: Fleet,
        replica: Replica,
        metrics: TainterMetrics,
        sources: SourceMetrics,
        *,
        judge: Judge = judge_apart,
        settle_s: float = SETTLE_S,
        look_s: float = LOOK_S,
        cpu_share: float = CPU_SHARE,
        backoff: Backoff = BACKOFF,
    ) -> None:
        self._client = client
        self._fleet = fleet
        self._replica = replica
        self._all_metrics = metrics
        self._metrics = StepTimesMetrics(metrics.registry)
        self._sources = sources
        self._judge = judge
        self._settle_s = settle_s
        self._look_s = look_s
        self._rest = 1 / cpu_share - 1
        self._backoff = backoff
        self._changed = asyncio.Event()
        self._policy: Policy | None = None
        self._reporter: StragglerReporter | None = None  # while leading
        self._logged: OrderedDict[JobKey, str] = OrderedDict()

    def note(self, name: str) -> None:
        """This node has changed; nothing follows."""

    def look_at_all(self) -> None:
        """The policy may have changed."""
        if self._fleet.policy() is not self._policy:
            self._changed.set()

    async def run(self) -> None:
        """Runs until cancelled."""
        self._reporter = StragglerReporter(self._client, self._fleet, self._replica, self._all_metrics, self._metrics)
        follower = Follower[StepTimesSource](self._follow)
        try:
            while True:
                self._changed.clear()
                self._policy = self._fleet.policy()
                where = self._policy.sources.step_times
                await follower.switch(where)
                if where is None:
                    self._reporter.end_all("step times were removed from the policy")
                    self._metrics.set_jobs({})
                await until_set(self._changed, follower.task)
        finally:
            await ended(follower.task)
            self._reporter = None
            self._metrics.set_jobs({})

    async def _follow(self, where: StepTimesSource) -> None:
        """Runs until cancelled."""
        status = SourceStatus(self._sources, self._backoff)
        window = _Window()
        failures = 0
        with status.followed([NAME]):
            while True:
                try:
                    async with PrometheusClient(where, now=self._replica.now, body_limit=BODY_LIMIT) as client:
                        while True:
                            window = await self._next_window(client, where, window)
                            await self._judge_window(client, where, window)
                            failures = 0
                            status.answered(NAME)
                            self._sources.read_to.labels(NAME).set(window.end)
                except Exception as error:
                    # other sources taint nodes, too, and must continue
                    if isinstance(error, SourceError):
                        self._sources.up.labels(NAME).set(0)
                    elif not isinstance(error, ApiError | ConfigError):
                        log.exception("%s: failed", NAME)
                    await status.wait(NAME, error, failures)
                    failures += 1

    async def _next_window(self, client: PrometheusClient, where: StepTimesSource, last: "_Window") -> "_Window":
        """The latest one that is over; ``last`` if it was interrupted and its successor is not over yet."""
        while True:
            now = client.now_ns() / NS
            if last.interrupted and now < last.end + where.window + self._settle_s:
                return last
            end = math.floor((now - self._settle_s) / where.window) * where.window
            if end != last.end:
                return _Window(end)
            await asyncio.sleep(min(self._look_s, max(0.0, end + where.window + self._settle_s - now)))

    async def _judge_window(self, client: PrometheusClient, where: StepTimesSource, window: "_Window") -> None:
        """Raises SourceError, ApiError; the same window continues later."""
        assert self._reporter is not None  # noqa: S101 - set while leading
        answer = await client.ask(list_query(where), window.end)
        jobs, nameless = find_jobs(answer.samples, where)
        self._count("malformed", nameless)
        late = window.end + where.window + self._settle_s
        for key, ranks in jobs:
            if key in window.reported:
                continue
            busy_s, verdict = 0.0, window.verdicts.get(key)
            try:
                if verdict is None and (len(window.verdicts) >= where.jobs or client.now_ns() / NS >= late):
                    verdict = JobVerdict(LEFT_OUT)
                elif verdict is None:
                    verdict, busy_s = await self._verdict(client, where, key, ranks, window.end)
                    window.verdicts[key] = verdict
                if verdict.slow:
                    self._count("homeless", await self._reporter.report(where, key, verdict))
            except (SourceError, ApiError) as error:
                window.failures[key] += 1
                if window.failures[key] < TRIES:
                    raise
                verdict = JobVerdict(UNUSABLE, str(error))  # the other jobs must not wait for this one
            window.reported[key] = verdict.verdict
            self._log(key, verdict)
            await asyncio.sleep(busy_s * self._rest)
        window.interrupted = False
        self._metrics.set_jobs(Counter(window.reported.values()))
        self._reporter.tick(window.end)

    async def _verdict(
        self, client: PrometheusClient, where: StepTimesSource, key: JobKey, ranks: int, end: float
    ) -> tuple[JobVerdict, float]:
        """(the verdict, seconds of CPU time that it took). Raises SourceError."""
        if ranks < 2:
            return JobVerdict("one_rank", "series of one rank; expected at least two, as ranks are compared"), 0.0
        if ranks > RANKS_LIMIT:
            return JobVerdict(TOO_LARGE, f"{ranks} ranks; expected {RANKS_LIMIT} at most"), 0.0
        await yield_to_taints(self._fleet.taints_idle)
        reading_s = step_s(ranks, where.window)
        try:
            body = await client.ask_range(series_query(where, key), end - where.window, end, reading_s)
        except AnswerTooLarge as error:
            return JobVerdict(TOO_LARGE, str(error)), 0.0
        labels = SeriesLabels(
            rank=where.rank_label, stage=where.stage_label, pod=where.pod_label, gpu=where.gpu_label,
            work=where.work_metric,
        )  # fmt: skip
        question = JobQuestion(labels, f"{key} {end:.0f}", math.ceil(DAY_S / where.window), reading_s)
        begun = self._replica.clock()
        try:
            verdict = await self._judge(question, body)
            busy_s = verdict.cpu_s
        except JudgeFailed as error:
            verdict, busy_s = JobVerdict(FAILED, str(error)), self._replica.clock() - begun
        self._metrics.cpu.inc(busy_s)
        self._count("read", 2 * ranks)
        self._count("malformed", verdict.unusable)
        return verdict, busy_s

    def _count(self, what: str, number: int) -> None:
        self._sources.lines.labels(NAME, what).inc(number)

    def _log(self, key: JobKey, verdict: JobVerdict) -> None:
        """One line when a job's verdict changes."""
        before = self._logged.pop(key, NOBODY)
        self._logged[key] = verdict.verdict
        while len(self._logged) > LOGGED_JOBS:
            self._logged.popitem(last=False)
        if before == verdict.verdict or verdict.verdict == LEFT_OUT:
            return
        names = ", ".join(f"{slow.rank} ({slow.pod or 'no pod'})" for slow in verdict.slow[:8])
        text = "; ".join(filter(None, (f"ranks {names}" if names else "", verdict.message)))
        log.info("%s: job %s: %s%s", NAME, key, verdict.verdict, f": {text}" if text else "")


class _Window:
    """end: in seconds since the epoch; nan: none yet. interrupted: not all jobs have been judged and reported."""

    def __init__(self, end: float = math.nan) -> None:
        self.end = end
        self.interrupted = not math.isnan(end)
        self.verdicts: dict[JobKey, JobVerdict] = {}
        self.reported: dict[JobKey, str] = {}
        self.failures: Counter[JobKey] = Counter()
