"""The tainter as an explored process: the controller with its watches, queues, budgets, decisions and writes.

Left out is what reports or acts only after the taints: Events and conditions, notices to pods, canaries, the background
tasks.
"""

from collections.abc import Hashable
from typing import Any
from unittest.mock import patch

from prometheus_client import CollectorRegistry
from prometheus_client.registry import Collector
from tests.explore.memory import MemoryReader
from tests.explore.process import Middle, Process

from muster_kube.api.client import KubeClient
from muster_kube.controller.clock import Clock
from muster_tainter.controller import Tainter
from muster_tainter.events.latency import HopLatency
from muster_tainter.faults.event_only import EventOnlyHistory
from muster_tainter.fleet.replica import Connections, Replica
from muster_tainter.metrics import TainterMetrics
from muster_tainter.policy.rules import Policy

NOON = 1_800_000_000.0


class _Replica(Replica):
    @property
    def timing(self) -> Clock:
        return Clock(monotonic=self.clock, wall=self.now, rng=Middle())


class _Nothing:
    """Stands for the parts that are left out."""

    def __init__(self, *_: object, **__: object) -> None:
        pass

    async def run(self) -> None:
        pass

    lead = watch = wait_looked = run

    def note(self, *_: object) -> None:
        pass

    record = set_condition = look_at_all = node_changed = health_changed = is_pending = decide = has_agent = note

    def __len__(self) -> int:
        return 0


class _Unregistered(CollectorRegistry):
    """Keeps nothing: nobody scrapes an explored replica, and there are thousands."""

    def register(self, collector: Collector) -> None:
        pass


_METRICS = TainterMetrics()
_METRICS.registry = _Unregistered()


class _Tainter(Tainter):
    def __init__(self, *args: Any) -> None:
        with patch.multiple("muster_tainter.controller", BackgroundTasks=_Nothing, CanaryTask=_Nothing):
            super().__init__(*args)

    def _make_reporters(self, _routine: object) -> Any:
        return _Nothing(), _Nothing()


class Leader(Process):
    """One replica. Inputs of its own: ``elected``, ``deposed`` (it may not write any more), ``stopped`` (its leading
    tasks are cancelled), ``clock`` (value: wall and monotonic seconds)."""

    reader = MemoryReader(
        KubeClient,
        HopLatency,
        EventOnlyHistory,
        Process,
        fields=("WorkQueue._getters", "WorkQueue.__orig_class__", "Tainter._logged", "Event._waiters"),
        idle=("WorkQueue.get",),
        dead=("_work.key", "_work.delay_s"),
    )

    def __init__(self, policy: Policy) -> None:
        super().__init__()
        self._policy = policy
        self._may_write = False
        self._wall, self._steady = NOON, 0.0
        self._leading: Any = None

    def start(self) -> None:
        replica = _Replica(lambda: self._may_write, now=lambda: self._wall, clock=lambda: self._steady)
        connections = Connections.shared(self.client)
        self.tainter = _Tainter(connections, lambda: self._policy, replica, _METRICS)
        self.spawn(self.tainter.watch())

    def do(self, name: str, value: Any) -> None:
        match name:
            case "elected":
                self._may_write = True
                self._leading = self.spawn(self.tainter.lead())
            case "deposed":
                self._may_write = False
            case "stopped":
                self._leading.cancel()
                self.tasks.remove(self._leading)
                self._leading = None
            case "clock":
                self._wall, self._steady = value
            case _:
                super().do(name, value)

    def roots(self) -> tuple[object, ...]:
        return self.tainter, self._may_write, self._wall, self._steady

    def shown(self) -> Hashable:
        """Whether it may write, has leading tasks, and nodes that wait for the end of doubts about a lost write."""
        allocator = self.tainter.budgets._allocator
        return self._may_write, self._leading is not None, bool(allocator._doubted and allocator.waiting)
