"""This process among the tainter's replicas: who it is, what it may write, and by which clocks and connections."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from muster_kube.api.client import KubeClient


@dataclass(frozen=True)
class Replica:
    """may_write: are we the leader at this moment? dry_run: decide and log, write nothing on Nodes
    namespace: its own; led_until: when a leader last lived before this one, seconds since the epoch; None: there was
    none
    now: seconds since the epoch; clock: monotonic seconds
    """

    may_write: Callable[[], bool]
    dry_run: bool = False
    namespace: str = "default"
    led_until: Callable[[], float | None] = lambda: None
    now: Callable[[], float] = time.time
    clock: Callable[[], float] = time.monotonic


@dataclass(frozen=True)
class Connections:
    """taints: watches, taints and Events; plan: the plan of heavy checks, verification and the nodes of pods; repair:
    drains, repairs and the quarantine of IPUs. Each kind of work has its own, so none holds up another."""

    taints: KubeClient
    plan: KubeClient
    repair: KubeClient

    @classmethod
    def shared(cls, client: KubeClient) -> "Connections":
        """All work over the same connections."""
        return cls(client, client, client)


@dataclass(frozen=True)
class AgentPodSelector:
    """Where the agents' pods are. labels: as kubectl takes a selector."""

    namespace: str
    labels: str
