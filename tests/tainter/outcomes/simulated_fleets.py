"""Fleets whose jobs fail for stated reasons: what their pods tell, as attempts in the order of their ends."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from random import Random

from muster_tainter.outcomes.evidence import HOUR_S, Attempt, EvidenceSettings

DAY_S = 24 * HOUR_S

REJECTED, EXITED, IMAGE = "KubeletAdmission", "ApplicationExit", "ImagePull"
HOST_KINDS = frozenset({REJECTED, "DeviceAllocation"})
TENANT_KINDS = frozenset({EXITED, IMAGE, "Admission", "PodStart", "ContainerStart", "OutOfMemory", "Evicted"})


def settings(false_alarms_per_node_year: float = 0.01) -> EvidenceSettings:
    return EvidenceSettings(HOST_KINDS, TENANT_KINDS, false_alarms_per_node_year)


@dataclass(frozen=True)
class Owner:
    """Starts a job of ``width`` pods, each on another node, every ``every_s`` on average; a pod runs for ``run_s``.

    rate, kind: how often a pod fails, and how. outages: share of the time in which all its pods fail.
    gang: when one pod fails, the others follow within a minute. retries: of a pod that failed; ``moves``: elsewhere.
    nodes: on which its pods run (empty: all). rates: other rates on single nodes, for reasons that are the owner's.
    """

    name: str
    namespace: str
    width: int = 8
    every_s: float = 4 * HOUR_S
    run_s: float = HOUR_S
    rate: float = 0.02
    kind: str = EXITED
    outages: float = 0.0
    gang: bool = False
    retries: int = 0
    moves: bool = False
    nodes: tuple[str, ...] = ()
    rates: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class BadNode:
    """From ``since`` on, a share of the pods on it fails with ``kind``."""

    kind: str
    rate: float
    since: float = 0.0


@dataclass(frozen=True)
class Fleet:
    """rejected: share of pods that healthy nodes reject. breaks: minutes of a day in which nodes reject most pods."""

    nodes: tuple[str, ...]
    owners: tuple[Owner, ...]
    bad: dict[str, BadNode] = field(default_factory=dict)
    rejected: float = 0.001
    breaks: float = 0.0

    def attempts(self, random: Random, days: float) -> list[Attempt]:
        breaks = self._breaks(random, days)
        found = [each for owner in self.owners for each in self._of_owner(owner, random, days, breaks)]
        return sorted(found, key=lambda attempt: attempt.at)

    def _breaks(self, random: Random, days: float) -> list[tuple[float, float]]:
        """(begin, end) of half an hour each."""
        count = round(self.breaks * days / 30)
        return [(begin, begin + 1800) for begin in (random.uniform(0, days * DAY_S) for _ in range(count))]

    def _of_owner(
        self, owner: Owner, random: Random, days: float, breaks: list[tuple[float, float]]
    ) -> Iterator[Attempt]:
        at = random.uniform(0, owner.every_s)
        nodes = owner.nodes or self.nodes
        down_until, up_until = 0.0, 0.0
        while at < days * DAY_S:
            if owner.outages and at > up_until:
                down_until = at + random.expovariate(1 / (6 * HOUR_S))
                up_until = down_until + random.expovariate(owner.outages / (1 - owner.outages) / (6 * HOUR_S))
            pods = [
                self._pod(owner, node, at + random.uniform(0, 1), at < down_until, random, breaks)
                for node in random.sample(nodes, min(owner.width, len(nodes)))
            ]
            if owner.gang and (ends := [pod.at for pod in pods if pod.failed]):
                pods = [self._follow(pod, min(ends), random) for pod in pods]
            yield from pods
            for pod in pods:
                yield from self._retries(owner, pod, random, breaks)
            at += random.expovariate(1 / owner.every_s)

    def _retries(
        self, owner: Owner, pod: Attempt, random: Random, breaks: list[tuple[float, float]]
    ) -> Iterator[Attempt]:
        nodes = owner.nodes or self.nodes
        for _ in range(owner.retries):
            if not pod.failed:
                return
            others = [node for node in nodes if node != pod.node]
            node = random.choice(others) if owner.moves and others else pod.node
            pod = self._pod(owner, node, pod.at + 1, False, random, breaks)
            yield pod

    def _pod(
        self, owner: Owner, node: str, at: float, down: bool, random: Random, breaks: list[tuple[float, float]]
    ) -> Attempt:
        bad = self.bad.get(node)
        broken = any(begin <= at < end for begin, end in breaks)
        kind = ""
        if random.random() < (0.8 if broken else self.rejected):
            kind = REJECTED
        elif bad and at >= bad.since and random.random() < bad.rate:
            kind = bad.kind
        elif down or random.random() < owner.rates.get(node, owner.rate):
            kind = owner.kind
        took = 1.0 if kind in HOST_KINDS else owner.run_s * (random.uniform(0, 0.5) if kind else random.uniform(0.5, 1))
        passed = frozenset() if kind in HOST_KINDS else HOST_KINDS
        uid = f"{random.getrandbits(64):x}"
        return Attempt(node, owner.name, owner.namespace, kind, bool(kind), at + took, at, uid, passed)

    @staticmethod
    def _follow(pod: Attempt, first: float, random: Random) -> Attempt:
        if pod.at <= first:
            return pod
        at = min(pod.at, first + random.uniform(1, 60))
        return replace(pod, kind=EXITED, failed=True, at=at, passed=HOST_KINDS)


def healthy_fleet(random: Random, count: int = 20) -> Fleet:
    """No node is bad; jobs fail for all reasons that are not a node's."""
    nodes = tuple(f"node-{number}" for number in range(count))
    owners = []
    for number in range(10):
        owner = Owner(
            f"owner-{number}",
            f"namespace-{number % 6}",
            width=random.choice((2, 4, 8, 16)),
            every_s=random.choice((1, 2, 4)) * HOUR_S,
            run_s=random.choice((60.0, 600.0, HOUR_S)),
            rate=random.choice((0.0, 0.01, 0.05, 0.3, 0.6, 1.0)),
            kind=random.choice((EXITED, IMAGE)),
            outages=random.choice((0.0, 0.0, 0.2)),
            gang=random.random() < 0.3,
            retries=random.choice((0, 0, 3)),
            moves=random.random() < 0.5,
            nodes=() if random.random() < 0.6 else tuple(random.sample(nodes, random.randint(1, 5))),
        )
        owners.append(owner)
    return Fleet(nodes, tuple(owners), rejected=random.choice((0.0, 0.001, 0.005)), breaks=random.choice((0, 0, 30)))


def careless_fleet(random: Random, kind: str, count: int = 20) -> Fleet:
    """No node is bad and none rejects a pod; owners fail by their own fault alone: bad images, or bad users."""
    nodes = tuple(f"node-{number}" for number in range(count))
    owners = tuple(
        Owner(
            f"owner-{number}",
            f"namespace-{number % 6}",
            width=random.choice((2, 4, 8)),
            every_s=random.choice((2, 4)) * HOUR_S,
            run_s=random.choice((60.0, 600.0)),
            rate=random.choice((0.1, 0.3, 0.6, 0.9, 1.0)),
            kind=kind,
            gang=random.random() < 0.3,
            retries=random.choice((0, 3)),
            moves=random.random() < 0.5,
        )
        for number in range(10)
    )
    return Fleet(nodes, owners, rejected=0.0)
