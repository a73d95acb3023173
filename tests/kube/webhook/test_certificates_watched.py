"""A certificate that is looked after: what is asked of the API server, and when. Days pass by a virtual clock."""

import asyncio
import logging
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
from tests.kube.played_objects import CONFIGURATION, SECRET, Cluster
from tests.kube.webhook.test_certificates import HOSTS, NOW, shake_hands

from muster_kube.api.client import KubeClient
from muster_kube.api.errors import Forbidden, Unreachable
from muster_kube.controller.clock import Clock
from muster_kube.controller.field_contest import BACKOFF, QUIET_S
from muster_kube.webhook.certificate_secret import CLOCK_LOOK_S, SPREAD_S, CertificateSecret
from muster_kube.webhook.key_pairs import (
    DAY_S,
    OVERLAP_S,
    RENEW_S,
    VALID_S,
    KeyPairSet,
    make_key_pair,
    next_renewal,
    renew_key_pairs,
)

SECONDS = 5.0  # within which a change is made good
REACTS_S = 2.0  # who writes another bundle than ours
LONG_S = 6 * 3600.0
FORBIDDEN = Forbidden(403, "Forbidden", "no right", SECRET)


class World:
    """Replicas that run beside a cluster. set_forward: seconds by which the wall clock was set."""

    def __init__(self, replicas: int = 2) -> None:
        self.cluster = Cluster()
        self.cluster.configure("own-node.muster.dev")
        self.set_forward = 0.0
        client = cast("KubeClient", self.cluster)
        self.replicas = [
            CertificateSecret(
                client, "muster", "own-node", HOSTS, trusting=[CONFIGURATION], clock=Clock(wall=self.clock)
            )
            for _ in range(replicas)
        ]

    def clock(self) -> float:
        return NOW + asyncio.get_running_loop().time() + self.set_forward

    @asynccontextmanager
    async def running(self) -> AsyncIterator["World"]:
        tasks = [asyncio.create_task(each.run()) for each in self.replicas]
        try:
            await asyncio.sleep(SECONDS)
            self.check()
            yield self
            assert not any(task.done() for task in tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def check(self) -> None:
        """All serve the same, and it is trusted."""
        assert self.cluster.bundle == self.cluster.secret()["ca.crt"]
        served = {shake_hands(each.ssl_context, self.cluster.bundle) for each in self.replicas}
        assert served == {ssl.PEM_cert_to_DER_cert(self.cluster.secret()["tls.crt"].decode())}


def test_nothing_is_asked_while_nothing_changes(wire: Any) -> None:
    async def live() -> None:
        async with World().running() as world:
            before = list(world.cluster.asked)
            await asyncio.sleep(30 * DAY_S)
            assert world.cluster.asked == before
            assert {path for method, path in before if method == "WATCH"} == {SECRET, CONFIGURATION}

    wire.run_virtually(live())


@pytest.mark.parametrize(
    "accident",
    [
        lambda cluster: cluster.remove(SECRET),
        lambda cluster: cluster.put({}),
        lambda cluster: cluster.configure("own-node.muster.dev", "one.more"),
        lambda cluster: (cluster.remove(CONFIGURATION), cluster.configure("own-node.muster.dev")),
    ],
    ids=["Secret deleted", "Secret emptied", "bundle taken away", "configuration made anew"],
)
def test_a_change_by_others_is_made_good_within_seconds(wire: Any, accident: Callable[[Cluster], object]) -> None:
    async def live() -> None:
        async with World().running() as world:
            accident(world.cluster)
            await asyncio.sleep(SECONDS)
            world.check()
            writes, asked = len(world.cluster.writes), len(world.cluster.asked)
            await asyncio.sleep(DAY_S)
            assert (len(world.cluster.writes), len(world.cluster.asked)) == (writes, asked)

    wire.run_virtually(live())


def test_a_configuration_that_comes_late_is_given_the_bundle(wire: Any) -> None:
    async def live() -> None:
        world = World()
        world.cluster.configure(path="elsewhere")
        world.cluster.remove(CONFIGURATION)
        tasks = [asyncio.create_task(each.run()) for each in world.replicas]
        await asyncio.sleep(DAY_S)
        world.cluster.configure("own-node.muster.dev")
        await asyncio.sleep(SECONDS)
        world.check()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    wire.run_virtually(live())


def test_it_is_renewed_when_it_is_due_though_nothing_changes(wire: Any) -> None:
    async def live() -> None:
        async with World().running() as world:
            first = world.cluster.secret()["tls.crt"]
            assert [round(each.left_s / DAY_S) for each in world.replicas] == [365, 365]
            world.set_forward = VALID_S - RENEW_S - DAY_S
            await asyncio.sleep(DAY_S - 2 * SECONDS)
            assert "next.crt" not in world.cluster.secret()
            await asyncio.sleep(4 * SECONDS)
            world.check()
            following = world.cluster.secret()["next.crt"]
            await asyncio.sleep(OVERLAP_S - 8 * SECONDS)
            assert world.cluster.secret()["tls.crt"] == first
            await asyncio.sleep(16 * SECONDS)
            world.check()
            assert world.cluster.secret()["tls.crt"] == following
            assert [round(each.left_s / DAY_S) for each in world.replicas] == [364, 364]

    wire.run_virtually(live())


def test_a_wall_clock_that_was_set_forward_is_heeded_within_the_hour(wire: Any) -> None:
    async def live() -> None:
        async with World().running() as world:
            world.set_forward = VALID_S - RENEW_S
            await asyncio.sleep(CLOCK_LOOK_S + SECONDS)
            assert "next.crt" in world.cluster.secret()

    wire.run_virtually(live())


def test_a_watch_that_breaks_heals_and_what_was_missed_is_made_good(wire: Any) -> None:
    async def live() -> None:
        async with World().running() as world:
            for method in ("LIST", "WATCH", "GET"):
                for path in (SECRET, CONFIGURATION):
                    world.cluster.refuse[method, path] = Unreachable("away", path)
            world.cluster.cut()
            await asyncio.sleep(600.0)
            world.cluster.remove(SECRET)
            world.cluster.refuse.clear()
            await asyncio.sleep(60.0)
            world.check()

    wire.run_virtually(live())


def test_without_the_right_to_watch_it_is_served_and_renewed_all_the_same(
    wire: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """An account of an older chart."""

    async def live() -> None:
        world = World()
        for path in (SECRET, CONFIGURATION):
            world.cluster.refuse["LIST", path] = FORBIDDEN
        async with world.running():
            world.set_forward = VALID_S - RENEW_S
            await asyncio.sleep(CLOCK_LOOK_S + SECONDS)
            world.set_forward += OVERLAP_S
            await asyncio.sleep(CLOCK_LOOK_S + SECONDS)
            world.check()
            assert world.cluster.writes.count(("PATCH", SECRET)) == 2

    with caplog.at_level(logging.WARNING):
        wire.run_virtually(live())
    told = [record.getMessage() for record in caplog.records if record.getMessage().startswith("cannot watch ")]
    assert len(told) == 4, "each replica's two watches, once"


@pytest.mark.parametrize("replicas", [1, 2])
def test_who_writes_another_bundle_again_and_again_is_named_once_and_met_ever_later(
    wire: Any, caplog: pytest.LogCaptureFixture, replicas: int
) -> None:
    theirs = make_key_pair(HOSTS, NOW).certificate

    async def live() -> None:
        async with World(replicas).running() as world:

            async def cainjector() -> None:
                while True:
                    if world.cluster.bundle != theirs:
                        world.cluster.inject(theirs, "cainjector")
                    await asyncio.sleep(REACTS_S)

            def ours() -> int:
                return world.cluster.writes.count(("PATCH", CONFIGURATION))

            injecting = asyncio.create_task(cainjector())
            before = ours()
            await asyncio.sleep(1800.0)
            in_half_an_hour = ours() - before
            await asyncio.sleep(LONG_S)
            later = ours() - before - in_half_an_hour
            injecting.cancel()
            assert 6 <= in_half_an_hour <= 20 * replicas
            assert (
                LONG_S / (1.5 * BACKOFF.cap_s + 2 * SECONDS) - 1 <= later <= replicas * LONG_S / (0.5 * BACKOFF.cap_s)
            )

            await asyncio.sleep(1.5 * BACKOFF.cap_s + SECONDS)
            world.check()
            await asyncio.sleep(QUIET_S)
            world.cluster.inject(theirs, "cainjector")
            await asyncio.sleep(SECONDS)
            world.check()

    with caplog.at_level(logging.WARNING):
        wire.run_virtually(live())
    told = [record.getMessage() for record in caplog.records if "caBundle" in record.getMessage()]
    assert len(told) == replicas
    assert all(CONFIGURATION in text and "cainjector" in text for text in told)


def test_the_same_trouble_is_logged_once_and_tried_again(wire: Any, caplog: pytest.LogCaptureFixture) -> None:
    async def live() -> None:
        world = World(replicas=1)
        world.cluster.refuse["GET", SECRET] = FORBIDDEN
        running = asyncio.create_task(world.replicas[0].run())
        await asyncio.sleep(600.0)
        tries = world.cluster.asked.count(("GET", SECRET))
        assert 600 / (45 + SPREAD_S) <= tries <= 60
        world.cluster.refuse.clear()
        await asyncio.sleep(45 + SPREAD_S)
        world.check()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    with caplog.at_level(logging.WARNING):
        wire.run_virtually(live())
    assert [record.getMessage().count("no right") for record in caplog.records] == [1]


def test_what_is_due_and_cannot_be_done_is_not_tried_all_the_time(wire: Any) -> None:
    async def live() -> None:
        async with World(replicas=1).running() as world:
            world.cluster.refuse["PATCH", CONFIGURATION] = FORBIDDEN
            world.set_forward = VALID_S - RENEW_S + DAY_S
            await asyncio.sleep(CLOCK_LOOK_S + SECONDS)
            before = len(world.cluster.asked)
            await asyncio.sleep(3600.0)
            assert len(world.cluster.asked) - before <= 3 * 3600 / 15

    wire.run_virtually(live())


@pytest.mark.parametrize(
    "kept",
    [
        KeyPairSet(make_key_pair(HOSTS, NOW)),
        KeyPairSet(make_key_pair(HOSTS, NOW), make_key_pair(HOSTS, NOW + 100 * DAY_S)),
    ],
)
def test_before_it_is_due_nothing_has_to_be_done(kept: KeyPairSet) -> None:
    due = next_renewal(kept)
    for now in (NOW, NOW + 50 * DAY_S, due - 1):
        assert renew_key_pairs(kept, HOSTS, min(now, due - 1), trusted=True) is kept
    assert renew_key_pairs(kept, HOSTS, due + 1, trusted=True) is not kept
