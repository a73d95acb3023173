"""This process among the tainter's replicas: its identity, permission to write, clocks and connections."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from muster_kube.api.client import KubeClient
from muster_kube.controller.clock import Clock


@dataclass(frozen=True)
class Replica:
    """may_write: whether this process leads at this moment. dry_run: decide and log, write nothing on Nodes
    namespace: its own; led_until: when the previous leader was last alive, seconds since the epoch; None if none was
    follows_another: whether another process may have led since ``took_over`` was last called
    repairs_in: namespace of the Jobs of repairs; empty: its own
    now: seconds since the epoch; clock: monotonic seconds
    """

    may_write: Callable[[], bool]
    dry_run: bool = False
    namespace: str = "default"
    led_until: Callable[[], float | None] = lambda: None
    follows_another: Callable[[], bool] = lambda: True
    took_over: Callable[[], None] = lambda: None
    repairs_in: str = ""
    now: Callable[[], float] = time.time
    clock: Callable[[], float] = time.monotonic

    @property
    def timing(self) -> Clock:
        """The clocks, for watches."""
        return Clock(monotonic=self.clock, wall=self.now)


@dataclass(frozen=True)
class Connections:
    """taints: watches, taints and Events; plan: heavy checks, verification and the nodes of pods; repair: drains,
    repairs and the quarantine of IPUs. Separate connections, so that they cannot block each other."""

    taints: KubeClient
    plan: KubeClient
    repair: KubeClient

    @classmethod
    def shared(cls, client: KubeClient) -> "Connections":
        """One client for everything."""
        return cls(client, client, client)


@dataclass(frozen=True)
class AgentPodSelector:
    """Selects the agents' pods. labels: as a kubectl selector."""

    namespace: str
    labels: str
