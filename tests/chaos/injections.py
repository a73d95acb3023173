"""What is done to the cluster and to Muster, and when: three lanes side by side, drawn from a seed before the start.

Each lane goes through its own kinds in a random order, all of them before one comes again.
"""

import asyncio
import random
import signal
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial

import httpx2
from tests.chaos.installation import Installation
from tests.chaos.raw_proxy import RawWeather
from tests.chaos.weather import FAULTS, PLAIN_FAULTS, Weather
from tests.chaos.world import Fleet

from muster_operator.admission.server import NAME as WEBHOOKS
from muster_sandbox.controlplane.admin import RequestRefused
from muster_sandbox.controlplane.install import NAMESPACE, install

AWAY_S = 30.0  # of an API server or an etcd that was killed
CRD = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/nodehealths.muster.dev"
STEPS_S = (-7200.0, -90.0, 45.0, 600.0, 7200.0)
READ_ONLY_TRIES = 20
WEBHOOK_SECRET = f"/api/v1/namespaces/{NAMESPACE}/secrets/{WEBHOOKS}"


class ClusterFault(StrEnum):
    """Of what all parts need. One at a time."""

    API_SERVER_KILLED = "the API server is killed"
    ETCD_KILLED = "etcd is killed"
    API_SERVER_STOPPED = "the API server is stopped"
    CRD_DELETED = "the CRD of NodeHealths is deleted and applied again"
    CERTIFICATE_EXPIRED = "the API server's certificate expires"
    WEBHOOK_CERTIFICATE = "the webhooks' certificate is lost"


class PartFault(StrEnum):
    """Of one process."""

    KILLED = "killed"
    STOPPED = "stopped"
    CLOCK = "clock steps"
    DISK_FULL = "disk full"
    DISK_READ_ONLY = "disk read-only"


@dataclass(frozen=True)
class Injection:
    """at_s: since the start. kind: a ClusterFault, a PartFault, a Weather or a RawWeather. target: a part, a link,
    ``peers`` or empty."""

    at_s: float
    lasts_s: float
    kind: StrEnum
    target: str = ""
    amount: float = 0.0

    def __str__(self) -> str:
        target = f"{self.target}: " if self.target else ""
        amount = f" {self.amount:g}" if self.amount else ""
        return f"{self.at_s:5.0f} s to {self.at_s + self.lasts_s:5.0f} s  {target}{self.kind}{amount}"


def schedule(
    seed: int, lasts_s: float, parts: Sequence[str], links: Sequence[str], disks: Sequence[str]
) -> list[Injection]:
    """In the order in which they begin; all have ended after ``lasts_s``. parts, disks: names of parts. links: of parts
    behind a FaultProxy."""
    rng = random.Random(seed)

    def cluster(kind: StrEnum) -> Injection:
        short = {ClusterFault.API_SERVER_KILLED: AWAY_S, ClusterFault.ETCD_KILLED: AWAY_S}
        return Injection(0, short.get(ClusterFault(kind), rng.uniform(4.0, 8.0)), kind)

    def link(kind: StrEnum) -> Injection:
        if isinstance(kind, RawWeather):
            return Injection(0, rng.uniform(2.0, 6.0), kind, "peers")
        plain = ("vipu", "proxy") if kind in PLAIN_FAULTS else ()
        target = rng.choice([*(each for each in links if each not in ("vipu", "proxy")), *plain])
        return Injection(0, rng.uniform(2.0, 8.0), kind, target, rng.choice((0.3, 1.0)))

    def part(kind: StrEnum) -> Injection:
        targets = disks if kind in (PartFault.DISK_FULL, PartFault.DISK_READ_ONLY) else parts
        # the simulator has no wall clock
        target = rng.choice([each for each in targets if each != "vipu-sim" or kind is not PartFault.CLOCK])
        amount = rng.choice(STEPS_S) if kind is PartFault.CLOCK else 0.0
        return Injection(0, rng.uniform(1.0, 12.0), kind, target, amount)

    weather: list[StrEnum] = [*FAULTS, *(each for each in RawWeather if each is not RawWeather.CALM)]
    processes = [PartFault.KILLED, PartFault.KILLED, *PartFault, PartFault.STOPPED]
    lanes: list[tuple[Sequence[StrEnum], Callable[[StrEnum], Injection], float]] = [
        (list(ClusterFault), cluster, 3.0),
        (weather, link, 1.0),
        (processes, part, 2.0),
    ]
    made = [each for kinds, make, pause_s in lanes for each in _lane(rng, kinds, make, pause_s, lasts_s)]
    return sorted(made, key=lambda each: each.at_s)


def _lane(
    rng: random.Random, kinds: Sequence[StrEnum], make: Callable[[StrEnum], Injection], pause_s: float, until_s: float
) -> list[Injection]:
    made: list[Injection] = []
    deck: list[StrEnum] = []
    at_s = rng.uniform(0.5, 2 * pause_s)
    while True:
        deck = deck or rng.sample(kinds, len(kinds))
        each = make(deck.pop())
        if at_s + each.lasts_s > until_s:
            return made
        made.append(Injection(at_s, each.lasts_s, each.kind, each.target, each.amount))
        at_s += each.lasts_s + rng.uniform(0.5, 1.5) * pause_s


class Injector:
    """Carries a schedule out. On a busy machine what ends late makes the next one of its lane or its part begin late.

    returned: called whenever the API server has been away: what it had in hand is not in its audit log.
    """

    def __init__(self, runs: Installation, fleet: Fleet, returned: Callable[[], Awaitable[None]]) -> None:
        self._runs, self._fleet, self._returned = runs, fleet, returned
        self._publishing: asyncio.TaskGroup
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)  # by part; empty: the cluster

    async def carry_out(self, injections: Sequence[Injection], say: Callable[[str], None]) -> None:
        begun = asyncio.get_running_loop().time()

        async def one(injection: Injection) -> None:
            await asyncio.sleep(begun + injection.at_s - asyncio.get_running_loop().time())
            async with self._locks[injection.target]:
                say(str(injection))
                await self._inject(injection)

        async with asyncio.TaskGroup() as self._publishing:
            for injection in injections:
                self._publishing.create_task(one(injection))

    async def _inject(self, injection: Injection) -> None:
        match injection.kind:
            case ClusterFault():
                await self._cluster(injection.kind, injection.lasts_s)
            case PartFault():
                await self._part(injection)
            case Weather():
                link = self._runs.links[injection.target]
                link.set_weather(injection.kind, injection.amount)
                await asyncio.sleep(injection.lasts_s)
                link.set_weather(Weather.CALM)
            case RawWeather():
                await self._peers(injection.kind, injection.lasts_s)

    async def _peers(self, weather: RawWeather, lasts_s: float) -> None:
        for weather_now, pause_s in ((weather, lasts_s), (RawWeather.CALM, 0.0)):
            for peer in self._runs.peers:
                peer.weather = weather_now
                peer.cut()
            await asyncio.sleep(pause_s)

    async def _cluster(self, kind: ClusterFault, lasts_s: float) -> None:
        plane, runs = self._runs.plane, self._runs
        match kind:
            case ClusterFault.API_SERVER_KILLED:
                await asyncio.to_thread(plane.kill_apiserver)
                await asyncio.sleep(lasts_s)
                await asyncio.to_thread(plane.restart_apiserver)
                await self._returned()
            case ClusterFault.ETCD_KILLED:
                await asyncio.to_thread(plane.kill_etcd)
                await asyncio.sleep(lasts_s)
                await asyncio.to_thread(plane.restart_etcd)
                await self._returned()
            case ClusterFault.API_SERVER_STOPPED:
                plane.pause()
                await asyncio.sleep(lasts_s)
                plane.resume()
            case ClusterFault.CRD_DELETED:
                await _insist(partial(plane.admin.delete, CRD))
                await asyncio.sleep(lasts_s)
                await _insist(partial(install, plane.admin))
                self._publishing.create_task(self._fleet.publish_all())
            case ClusterFault.CERTIFICATE_EXPIRED:
                called = [runs.links[name] for name in runs.called_parts()]
                for certificate, pause_s in ((runs.expired, lasts_s), (runs.certificate, 0.0)):
                    for link in called:
                        link.set_certificate(certificate)
                    await asyncio.sleep(pause_s)
            case ClusterFault.WEBHOOK_CERTIFICATE:
                await _insist(partial(plane.admin.delete, WEBHOOK_SECRET))

    async def _part(self, injection: Injection) -> None:
        part = self._runs.parts[injection.target]
        match injection.kind:
            case PartFault.KILLED:
                await asyncio.to_thread(part.process.kill)
                await asyncio.sleep(injection.lasts_s)
                await part.start()
            case PartFault.STOPPED:
                part.process.signal(signal.SIGSTOP)
                await asyncio.sleep(injection.lasts_s)
                part.process.signal(signal.SIGCONT)
            case PartFault.CLOCK:
                part.step_clock(injection.amount)
                await asyncio.sleep(injection.lasts_s)
                part.step_clock(0.0)
            case PartFault.DISK_FULL if part.disk is not None:
                await asyncio.to_thread(part.disk.fill)
                await asyncio.sleep(injection.lasts_s)
                await asyncio.to_thread(part.disk.free)
            case PartFault.DISK_READ_ONLY if part.disk is not None:
                for _ in range(READ_ONLY_TRIES):
                    if await asyncio.to_thread(part.disk.set_read_only, True):
                        break
                    await asyncio.sleep(0.1)
                await asyncio.sleep(injection.lasts_s)
                await asyncio.to_thread(part.disk.set_read_only, False)


async def _insist(act: Callable[[], object]) -> None:
    """On a busy machine an administrator's request may have no answer, too."""
    while True:
        try:
            await asyncio.to_thread(act)
        except (RequestRefused, httpx2.TransportError):
            await asyncio.sleep(1.0)
        else:
            return
