"""The agent of one node without its edges: its checks, what they come to, and whether it may be believed.

Edges (API, HTTP, disk, signals) are wired in app.py and ask here.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence

import msgspec

from muster_agent.metrics import CheckReading
from muster_agent.running import Context, Running
from muster_agent.state import VERSION, Stored
from muster_agent.status import compose
from muster_checks.declaration import Parameters
from muster_checks.vocabulary import Result
from muster_kube.nodehealth import NodeHealth, Status

FIRST_PASS_S = 10.0  # the first status of a process waits so long for all checks' first pass


class Publication(msgspec.Struct, frozen=True, kw_only=True):
    """How telling the cluster goes. complaint: why it does not, empty while it does."""

    complaint: str = ""
    unpublished_s: float = 0.0


class Agent:
    """``publication``: asked for by /readyz and /metrics; standalone agents have nothing to publish."""

    def __init__(
        self,
        checks: Sequence[Running],
        context: Context,
        *,
        pod_uid: str,
        version: str,
        hardware: Mapping[str, str] | None = None,
        publication: Callable[[], Publication] = Publication,
    ) -> None:
        self.checks = {running.name: running for running in checks}
        self.context = context
        self.pod_uid = pod_uid
        self.version = version
        self.publication = publication
        self.hardware = hardware or {}
        self._started = context.clock()
        self._runs: dict[tuple[str, str], asyncio.Task[Result]] = {}
        self._told_boot = ""
        self._passed = False

    @property
    def node(self) -> str:
        return self.context.node

    # --- what is published and stored

    def desired(self) -> Status | None:
        """What the NodeHealth should hold; None until the first pass of this process is through, or takes too long."""
        caught_up = all(running.caught_up for running in self.checks.values())
        self._passed = self._passed or caught_up
        in_time = self.context.clock() - self._started < FIRST_PASS_S
        if not caught_up and in_time and not self._passed and not self._blocked():
            return None
        return compose(
            [running.view() for running in self.checks.values() if running.known],
            # a boot is named only when its log has been read to the end: before that, nothing is known of it
            boot_id=self.context.boot_id if self._passed else self._told_boot,
            pod_uid=self.pod_uid,
            version=self.version,
        )

    def first_pass_ends_in_s(self) -> float:
        """Seconds until :meth:`desired` answers in any case."""
        return max(0.0, self._started + FIRST_PASS_S - self.context.clock())

    def take_health(self, health: NodeHealth) -> None:
        """The own NodeHealth as it is now: what was told before, and what is asked."""
        self._told_boot = health.status.boot_id
        for running in self.checks.values():
            running.reconcile(health)
            running.apply_clears(health.spec.clear)

    def stored(self) -> Stored:
        return Stored(
            version=VERSION,
            node=self.node,
            checks={name: running.stored() for name, running in self.checks.items()},
        )

    def _blocked(self) -> bool:
        """A check that cannot be read says so at once, instead of holding up the others."""
        return any(running.trouble is not None and running.trouble[0] != "Starting" for running in self.checks.values())

    # --- what people and Prometheus ask

    async def refresh(self, running: Running, parameters: Parameters) -> Result:
        """The result of one check as of now; callers of the same check with the same parameters share a run."""
        key = (running.name, parameters.model_dump_json())
        task = self._runs.get(key)
        if task is None:
            task = asyncio.create_task(running.refresh(parameters))
            self._runs[key] = task
            task.add_done_callback(lambda _: self._runs.pop(key, None))
        # a caller that hangs up must not take the run from the others
        return await asyncio.shield(task)

    def unready(self) -> list[str]:
        """Why this agent should not be believed now; empty: it may."""
        reasons = [reason for running in self.checks.values() if (reason := running.unready())]
        complaint = self.publication().complaint
        return [*reasons, complaint] if complaint else reasons

    def readings(self) -> "AgentReadings":
        return AgentReadings(self)


class AgentReadings:
    """The agent as the metrics see it."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent

    def checks(self) -> Sequence[CheckReading]:
        return [running.reading() for running in self._agent.checks.values() if running.known]

    def unpublished_s(self) -> float:
        return self._agent.publication().unpublished_s

    def accelerator(self) -> Mapping[str, str]:
        return self._agent.hardware
