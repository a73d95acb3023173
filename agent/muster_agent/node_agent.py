"""The agent of one node: runs its checks, keeps their results, and knows whether they are up to date.

It does no I/O of its own, but for the links in /sys that name a NIC's address; app.py connects it to the API server,
HTTP, disk and signals.
"""

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from functools import partial

import msgspec

from muster_agent.checks.check_outcome import CheckOutcome, refused_outcome
from muster_agent.checks.local_node import LocalNode
from muster_agent.checks.node_check import NodeCheck
from muster_agent.checks.reporter import NO_REPORTER, Reporter
from muster_agent.checks.request_runner import STOPPING, RequestRunner
from muster_agent.checks.run_admission import CpuShare, NodeBusy, RunQueue
from muster_agent.checks.schedule import Schedule
from muster_agent.checks.state_file import VERSION, StoredState
from muster_agent.findings import finding_log
from muster_agent.findings.health_status import CheckView, compose_status
from muster_agent.findings.ledger import Ledger
from muster_agent.findings.stored_ledger import ClearedBy
from muster_agent.idle.occupancy import WHOLE_NODE, AlwaysIdle, Occupancy, RunScope
from muster_agent.metrics.agent_metrics import CheckReading
from muster_agent.publish.canary import Canary
from muster_agent.publish.kernel_log_echo import KernelLogEcho
from muster_checks.base.declaration import Cost, Parameters
from muster_checks.base.vocabulary import Result, Verdict
from muster_checks.hardware.nic_address import nic_address
from muster_kube.api.times import rfc3339
from muster_kube.nodehealth import RESERVED_CHECKS, AgentIdentity, NodeHealth, NodeHealthStatus

PLAN_LOOK_S = 30.0  # interval of retries after a check was refused although the node seemed idle
REQUEST_PATIENCE_S = 60.0  # requests for many runs of a light check also respect light_cpu_share
STOP_S = 3.0  # limit for ending running checks; tools in uninterruptible sleep are left behind
UNKNOWN_LIMIT = 64  # disowned findings of checks that do not run here; one check can have as many
FIRST_PASS_S = 10.0  # limit for which the first status waits for the first pass of all checks


class RunPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Which checks run periodically, and when.

    periods:     seconds between two runs, by check; see settings.check_periods
    local:       due heavy checks run as soon as the node is idle; otherwise they wait for the plan of the tainter
    post_flight: heavy checks that become due when work on the node has ended (local plan only)
    """

    periods: Mapping[str, float] = {}
    local: bool = True
    post_flight: Sequence[str] = ()


class _Run(msgspec.Struct):
    """A run that callers share. It is cancelled when its last caller is."""

    task: "asyncio.Task[CheckOutcome]"
    waiting: int = 0


class Agent:
    """The agent of one node. reporter: receives changes, and provides the state of publication for /readyz.
    echo: the first hop of canaries."""

    def __init__(
        self,
        local: LocalNode,
        checks: Sequence[NodeCheck],
        identity: AgentIdentity,
        *,
        queue: RunQueue | None = None,
        plan: RunPlan | None = None,
        reporter: Reporter = NO_REPORTER,
        echo: KernelLogEcho | None = None,
    ) -> None:
        self.local = local
        self.checks = {check.name: check for check in checks}
        self.identity = identity
        self.reporter = reporter
        self.queue = queue or RunQueue(AlwaysIdle(local.clock.wall()), light_at_once=4, cpu=CpuShare(1.0))
        self._plan = plan or RunPlan()
        self._periods = {name: period_s for name, period_s in self._plan.periods.items() if name in self.checks}
        for name, period_s in self._periods.items():
            self.checks[name].period_s = period_s
        self.requests = RequestRunner(self._run_requested, self.checks, reporter, local.clock)
        self._canary = Canary(local.name, local.clock, reporter.report_change, echo)
        self._post_flight = [name for name in self._plan.post_flight if name in self.checks]
        self._was_idle = self.occupancy.idle_since is not None
        self._plan_changed = asyncio.Event()
        self._started = local.clock.monotonic()
        self._runs: dict[tuple[str, str, bool, RunScope], _Run] = {}
        self._reported_boot_id = ""
        self._stopping = False
        self.disowns = False
        """Whether this agent alone publishes for its node: it has locked its state, so its ledgers are complete."""
        self._unknown_checks: dict[str, Ledger] = {}  # with findings that somebody else wrote

    @property
    def node(self) -> str:
        return self.local.name

    @property
    def occupancy(self) -> Occupancy:
        return self.queue.occupancy

    # --- what is published and stored

    def desired(self) -> NodeHealthStatus | None:
        """The desired status; None until the first pass of all checks has ended or exceeds FIRST_PASS_S."""
        # a check that starts over because its NodeHealth is newer has to complete its first pass again
        passed = all(running.caught_up for running in self.checks.values())
        in_time = self.local.clock.monotonic() - self._started < FIRST_PASS_S
        if not passed and in_time and not self._blocked():
            return None
        return compose_status(
            self._views(),
            # the boot is reported only after its log has been read to the end
            boot_id=self.local.boot_id if passed else self._reported_boot_id,
            agent=self.identity,
            idle_since="" if (since := self.occupancy.idle_since) is None else rfc3339(since),
            due=self.due(),
            answers=self.requests.answers(),
            canary=self._canary.report,
            address_of=partial(nic_address, self.local.view),
        )

    def first_pass_ends_in_s(self) -> float:
        """Seconds until :meth:`desired` returns a status in any case."""
        return max(0.0, self._started + FIRST_PASS_S - self.local.clock.monotonic())

    def apply_health(self, health: NodeHealth) -> None:
        """Apply the node's NodeHealth: the published state, clears and requests."""
        self._reported_boot_id = health.status.boot_id
        for running in self.checks.values():
            running.reconcile(health)
            running.apply_clears(health)
        self.requests.apply_requests(health.spec.requests, health.status.answers)
        self._canary.apply(health.spec.canary, health.status.canary)

    def disown(self, status: NodeHealthStatus, *, published: bool) -> bool:
        """Close the findings in ``status`` that this agent never made. True if there are any.

        published: this process has published, and somebody else has written since
        """
        found = False
        for reported in status.checks if self.disowns else ():
            running = self.checks.get(reported.name)
            if running is not None:
                found |= running.disown(reported, published=published)
            elif published and reported.findings and reported.name not in RESERVED_CHECKS:
                ledger = self._unknown_checks.pop(reported.name, None) or Ledger(reported.name, self.local.boot_id)
                self._unknown_checks[reported.name] = ledger  # the last one
                foreign = ledger.disown(reported.findings, self.local.clock.wall(), published=True)
                while sum(len(each.over()) for each in self._unknown_checks.values()) > UNKNOWN_LIMIT:
                    del self._unknown_checks[next(iter(self._unknown_checks))]
                if foreign:
                    finding_log.log_disowned(reported.name, foreign)
                    found = True
        return found

    def _views(self) -> list[CheckView]:
        known = [running.view() for running in self.checks.values() if running.known]
        # a SKIP that carries what was disowned: it changes no verdict, and no rule acts on it
        unrun = [(each.name, each.ledger) for each in self.checks.values() if not each.known]
        ledgers = [*unrun, *self._unknown_checks.items()]
        return [
            *known,
            *(
                CheckView(name=name, verdict=Verdict.SKIP, over=ledger.over(), last_occurrence=ledger.counter)
                for name, ledger in ledgers
                if any(entry.how == ClearedBy.DISOWNED for entry in ledger.over())
            ),
        ]

    def stored(self) -> StoredState:
        return StoredState(
            version=VERSION,
            node=self.node,
            checks={name: running.stored() for name, running in self.checks.items()},
            requests=self.requests.stored(),
            idle_since=self.occupancy.idle_since or 0.0,
            counters=self.local.view.history.memory(self.local.boot_id, newest=self._stopping),
        )

    def _blocked(self) -> bool:
        """Whether a check is in trouble, which is reported at once instead of delaying the first status."""
        return any(running.trouble is not None and running.trouble[0] != "Starting" for running in self.checks.values())

    # --- runs on request

    async def run_check(
        self, running: NodeCheck, parameters: Parameters, *, force: bool = False, scope: RunScope = WHOLE_NODE
    ) -> CheckOutcome:
        """Run the check when it is its turn.

        Callers with the same arguments share a run, which is cancelled with the last of them. A heavy check is refused
        while the node is busy, as far as that concerns ``scope``, unless ``force``.
        """
        key = (running.name, repr(parameters), force, scope)
        run = self._runs.get(key)
        if run is None or run.task.cancelling():
            task = asyncio.create_task(self._run(running, parameters, force, scope))
            run = self._runs[key] = _Run(task)
        run.waiting += 1
        try:
            await asyncio.wait([run.task])  # unlike awaiting the task, this does not cancel it
        finally:
            run.waiting -= 1
            if not run.waiting:
                run.task.cancel()
                if self._runs.get(key) is run:
                    del self._runs[key]
        if run.task.cancelled():
            message = "the agent is stopping"
            result = Result(check=running.name, verdict=Verdict.UNKNOWN, reason=STOPPING, message=message)
            return CheckOutcome(result)
        return run.task.result()

    def last_outcome(self, running: NodeCheck) -> CheckOutcome:
        """The last result; runs nothing."""
        result = running.last
        if result is None:
            return CheckOutcome(running.result())
        return CheckOutcome(result, age_s=max(0.0, self.local.clock.wall() - result.started))

    async def _run(self, running: NodeCheck, parameters: Parameters, force: bool, scope: RunScope) -> CheckOutcome:
        begun = False

        async def refresh() -> Result:
            nonlocal begun
            begun = True
            return await running.refresh(parameters)

        if running.check.stream is not None:
            return CheckOutcome(await refresh())
        if running.check.cost is Cost.LIGHT:
            return CheckOutcome(await self.queue.run_light(refresh))
        try:
            return CheckOutcome(await self.queue.run_heavy(running.name, refresh, force=force, scope=scope))
        except NodeBusy as busy:
            running.tallies["gave_way" if begun else "refused"] += 1
            return refused_outcome(running.name, str(busy), running.last, self.local.clock.wall())

    async def _run_requested(
        self, running: NodeCheck, parameters: Parameters, force: bool, scope: RunScope
    ) -> CheckOutcome:
        if running.check.cost is Cost.LIGHT and running.check.stream is None:
            await self.queue.wait_for_processor(REQUEST_PATIENCE_S)
        return await self.run_check(running, parameters, force=force, scope=scope)

    # --- periodic runs

    async def run(self) -> None:
        """Run the schedule, requests and the local plan until cancelled."""
        schedule = Schedule(
            self.node,
            self.checks,
            self._periods,
            self,
            self.local.clock,
        )
        async with asyncio.TaskGroup() as group:
            group.create_task(self.occupancy.run())
            group.create_task(schedule.run())
            group.create_task(self.requests.run())
            group.create_task(self._canary.run())
            if self._plan.local:
                group.create_task(self._follow_local_plan())

    async def stop(self) -> None:
        """End running checks and their tools; bounded in time."""
        self._stopping = True
        tasks = [run.task for run in self._runs.values()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=STOP_S)

    def due(self) -> tuple[str, ...]:
        """Due heavy checks, the longest waiting first."""
        waiting = [(since, name) for name, each in self.checks.items() if (since := each.due_since) is not None]
        return tuple(name for _, name in sorted(waiting))

    def occupancy_changed(self) -> None:
        """The node has become idle or busy."""
        idle = self.occupancy.idle_since is not None
        if idle and not self._was_idle and self._plan.local:
            for name in self._post_flight:
                self._make_due(self.checks[name])
        self._was_idle = idle
        self._plan_changed.set()
        self.reporter.report_change()

    async def run_turn(self, running: NodeCheck) -> None:
        await self.queue.wait_for_processor(running.period_s / 2)
        await self.run_check(running, running.parameters)

    def mark_due(self, name: str) -> None:
        running = self.checks[name]
        # devices appear only after a boot, and a recent result needs no new run
        nothing_there = running.last is not None and running.last.verdict is Verdict.SKIP
        fresh = 0 <= self.local.clock.wall() - running.ran_at < running.period_s / 2
        if not (nothing_there or fresh):
            self._make_due(running)

    def _make_due(self, running: NodeCheck) -> None:
        if running.due_since is None:
            running.due_since = self.local.clock.wall()
            self._plan_changed.set()
            self.reporter.report_change()

    def count_overrun(self, name: str) -> None:
        self.checks[name].tallies["overrun"] += 1

    async def _follow_local_plan(self) -> None:
        while True:
            self._plan_changed.clear()
            due = self.due()
            if due and self.occupancy.idle_since is not None:
                running = self.checks[due[0]]
                answered = await self.run_check(running, running.parameters)
                if not answered.refused and running.due_since is None:
                    continue
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(PLAN_LOOK_S if due else None):
                    await self._plan_changed.wait()

    def unready(self) -> list[str]:
        """Why the published state may be out of date; empty if it is not."""
        reasons = [reason for running in self.checks.values() if (reason := running.unready())]
        complaint = self.reporter.publication().complaint
        return [*reasons, complaint] if complaint else reasons


class AgentReadings:
    """Provides the metrics with the agent's state. hardware: see node_hardware.read_hardware."""

    def __init__(self, agent: Agent, hardware: Mapping[str, str]) -> None:
        self._agent = agent
        self._hardware = hardware

    def checks(self) -> Sequence[CheckReading]:
        return [running.reading() for running in self._agent.checks.values()]

    def unpublished_s(self) -> float:
        return self._agent.reporter.publication().unpublished_s

    def accelerator(self) -> Mapping[str, str]:
        return self._hardware
