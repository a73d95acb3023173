"""Certificates over years, replicas and accidents: what is served is always what the configuration trusts."""

import asyncio
import base64
import json
import logging
import re
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kube.played_objects import CONFIGURATION, SECRET, Cluster, nothing

from muster_kube.api.client import KubeClient
from muster_kube.api.errors import ConfigError, Forbidden
from muster_kube.controller.clock import Clock
from muster_kube.webhook.certificate_files import CertificateFiles
from muster_kube.webhook.certificate_secret import CertificateSecret, mutating_webhook_path
from muster_kube.webhook.key_files import check_key_files
from muster_kube.webhook.key_pairs import (
    DAY_S,
    HOSTS_LIMIT,
    RENEW_S,
    VALID_S,
    KeyPairSet,
    UnusableKeyPair,
    make_key_pair,
    read_key_pairs,
    renew_key_pairs,
)

NOW = 1_800_000_000.0
HOST = "own-node.muster.svc"
HOSTS = (HOST, "10.1.2.3")


class WallClock:
    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def cluster() -> Cluster:
    made = Cluster()
    made.configure("own-node.muster.dev")
    return made


@pytest.fixture
def clock() -> WallClock:
    return WallClock()


@pytest.fixture
def replica(cluster: Cluster, clock: WallClock) -> Callable[..., CertificateSecret]:
    def start(*hosts: str, sleep: Callable[[float], Awaitable[object]] = asyncio.sleep) -> CertificateSecret:
        return _replica(cluster, clock, hosts or HOSTS, sleep)

    return start


def _replica(
    cluster: Cluster,
    clock: WallClock,
    hosts: tuple[str, ...] = HOSTS,
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
) -> CertificateSecret:
    client = cast("KubeClient", cluster)
    return CertificateSecret(
        client, "muster", "own-node", hosts, trusting=[CONFIGURATION], clock=Clock(wall=clock, sleep=sleep)
    )


def shake_hands(server: ssl.SSLContext, bundle: bytes, host: str = HOST) -> bytes:
    """The certificate (DER) that a client who trusts ``bundle`` gets. Raises ssl.SSLError. Time is not looked at: the
    clock of these tests is not this machine's."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cadata=bundle.decode())
    context.verify_flags |= ssl.VerifyFlags(0x200000)  # X509_V_FLAG_NO_CHECK_TIME, which has no name in Python
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client_side = context.wrap_bio(to_client, to_server, server_hostname=host)
    server_side = server.wrap_bio(to_server, to_client, server_side=True)
    waiting = {client_side, server_side}
    for _ in range(10):
        for side in list(waiting):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
            waiting.discard(side)
        if not waiting:
            break
    certificate = client_side.getpeercert(binary_form=True)
    assert certificate is not None
    return certificate


# -- when the next one takes over


def test_a_pair_is_left_alone_for_two_thirds_of_its_life() -> None:
    kept = renew_key_pairs(None, HOSTS, NOW, trusted=False)
    assert renew_key_pairs(kept, HOSTS, NOW + VALID_S - RENEW_S, trusted=True) is kept


def test_the_next_pair_is_trusted_for_a_day_before_it_serves() -> None:
    kept = KeyPairSet(make_key_pair(HOSTS, NOW))
    begun = NOW + VALID_S - RENEW_S + 60
    following = renew_key_pairs(kept, HOSTS, begun, trusted=True)
    assert following.current == kept.current
    assert following.next is not None
    assert following.bundle == kept.current.authority + following.next.authority
    assert renew_key_pairs(following, HOSTS, begun + DAY_S - 60, trusted=True) is following
    taken = renew_key_pairs(following, HOSTS, begun + DAY_S, trusted=True)
    assert (taken.current, taken.next) == (following.next, None)
    assert kept.current.authority in taken.bundle  # a replica that has not looked yet still serves it


def test_a_pair_that_is_not_trusted_yet_does_not_serve_while_the_old_one_does() -> None:
    kept = KeyPairSet(make_key_pair(HOSTS, NOW))
    following = renew_key_pairs(kept, HOSTS, NOW + VALID_S - RENEW_S + 60, trusted=True)
    late = NOW + VALID_S - 60
    assert renew_key_pairs(following, HOSTS, late, trusted=False) is following
    assert renew_key_pairs(following, HOSTS, NOW + VALID_S, trusted=False).current == following.next


def test_an_expired_pair_is_replaced_at_once_and_no_longer_trusted() -> None:
    kept = KeyPairSet(make_key_pair(HOSTS, NOW))
    later = renew_key_pairs(kept, HOSTS, NOW + VALID_S, trusted=True)
    assert later.current.serves(HOSTS, NOW + VALID_S)
    assert kept.current.authority not in later.bundle


def test_new_names_come_to_the_old_ones_so_that_two_versions_do_not_fight() -> None:
    old, new = ("old.muster.svc",), ("new.muster.svc",)
    kept = renew_key_pairs(KeyPairSet(make_key_pair(old, NOW)), new, NOW, trusted=True)
    assert kept.current.hosts == {*old, *new}
    assert renew_key_pairs(kept, old, NOW, trusted=True) is kept
    many = [f"{number}.muster.svc" for number in range(HOSTS_LIMIT)]
    assert renew_key_pairs(kept, many, NOW, trusted=True).current.hosts == set(many)


def test_what_is_stored_reads_as_it_was_and_holds_no_authoritys_key() -> None:
    kept = renew_key_pairs(KeyPairSet(make_key_pair(HOSTS, NOW)), HOSTS, NOW + VALID_S - RENEW_S + 60, trusted=True)
    kept = renew_key_pairs(kept, HOSTS, NOW + VALID_S - RENEW_S + 2 * DAY_S, trusted=True)
    kept = renew_key_pairs(kept, HOSTS, kept.current.ends - RENEW_S + 60, trusted=True)
    data = {name: value for name, value in kept.data().items() if value is not None}
    assert read_key_pairs(data) == kept
    assert [name for name, value in data.items() if b"PRIVATE KEY" in value] == ["tls.key", "next.key"]


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"tls.crt": b"garbage"}, "tls.crt"),
        ({"tls.crt": b""}, "tls.crt"),
        ({"tls.key": b"garbage"}, "tls.key"),
        ({"tls.key": make_key_pair(HOSTS, NOW).key}, "tls.key"),
        ({"ca.crt": make_key_pair(HOSTS, NOW).authority}, "ca.crt"),
        ({"next.crt": make_key_pair(HOSTS, NOW).certificate}, "next.key"),
    ],
    ids=["garbage", "half", "bad key", "another's key", "another's authority", "half of the next"],
)
def test_what_is_no_pair_is_told_by_its_name(change: dict[str, bytes], name: str) -> None:
    data = {name: value for name, value in KeyPairSet(make_key_pair(HOSTS, NOW)).data().items() if value is not None}
    with pytest.raises(UnusableKeyPair, match=f"^{re.escape(name)}: "):
        read_key_pairs(data | change)


# -- replicas that share a Secret


async def test_the_first_replica_makes_it_and_the_others_take_it(
    cluster: Cluster, replica: Callable[..., CertificateSecret]
) -> None:
    one, two = replica(), replica()
    assert not one.ready.is_set()
    await one.refresh()
    await two.refresh()
    assert cluster.writes == [("POST", SECRET), ("PATCH", CONFIGURATION)]
    assert one.ca_bundle == two.ca_bundle == cluster.bundle
    for host in HOSTS:
        assert shake_hands(one.ssl_context, cluster.bundle, host) == shake_hands(two.ssl_context, cluster.bundle, host)


async def test_nothing_is_written_while_nothing_has_to_change(
    cluster: Cluster, clock: WallClock, replica: Callable[..., CertificateSecret]
) -> None:
    one = replica()
    await one.refresh()
    before = len(cluster.writes)
    for _ in range(200):
        clock.now += DAY_S
        await one.refresh()
    assert len(cluster.writes) == before


async def test_over_three_years_each_replica_serves_what_is_trusted(
    cluster: Cluster, clock: WallClock, replica: Callable[..., CertificateSecret]
) -> None:
    one, two = replica(), replica()
    await one.refresh()
    await two.refresh()
    context, seen = one.ssl_context, set()
    for step in range(3 * 365 // 4):
        await (one, two)[step % 2].refresh()  # one of them is always days behind
        for each in (one, two):
            seen.add(shake_hands(each.ssl_context, cluster.bundle))
        clock.now += DAY_S * (2 if step % 2 else 6)
    assert one.ssl_context is context
    assert len(seen) == 5  # a new one every 245 days
    secret = [path for _, path in cluster.writes if path == SECRET]
    assert len(secret) == 1 + 2 * 4  # the next one comes, the next one serves


@settings(max_examples=40)
@given(pauses=st.lists(st.integers(0, 6), min_size=60, max_size=60), days=st.sampled_from([0, 244, 246, 366]))
def test_however_replicas_meet_they_end_with_one_bundle(pauses: list[int], days: int) -> None:
    async def meet() -> None:
        cluster, clock = Cluster(), WallClock()
        cluster.configure("a", "b")
        if days:
            await _replica(cluster, clock).refresh()
            clock.now += days * DAY_S
        turns = iter(pauses)

        async def others() -> None:
            for _ in range(next(turns, 0)):
                await asyncio.sleep(0)

        cluster.meanwhile = others
        replicas = [_replica(cluster, clock) for _ in range(3)]
        await asyncio.gather(*(each.refresh() for each in replicas))
        assert cluster.bundle == cluster.secret()["ca.crt"]
        for each in replicas:
            shake_hands(each.ssl_context, cluster.bundle)

    asyncio.run(meet())


@pytest.mark.parametrize("bundle", ["written", "taken away"])
@pytest.mark.parametrize("call", range(4))
async def test_a_slow_replica_never_writes_an_old_bundle_over_a_new_one(
    cluster: Cluster, clock: WallClock, replica: Callable[..., CertificateSecret], call: int, bundle: str
) -> None:
    """Another one, whose clock is a day ahead, renews between any two calls of the slow one."""
    slow = replica()
    await slow.refresh()
    clock.now += VALID_S - RENEW_S - DAY_S / 2
    ahead = WallClock()
    ahead.now = clock.now + DAY_S
    other = _replica(cluster, ahead)
    if bundle == "taken away":
        cluster.configure("own-node.muster.dev")
    left = iter(range(call))

    async def meanwhile() -> None:
        if next(left, None) is None:
            cluster.meanwhile = nothing
            await other.refresh()

    cluster.meanwhile = meanwhile
    await slow.refresh()
    if cluster.meanwhile is meanwhile:  # the slow one has made fewer calls
        cluster.meanwhile = nothing
        await other.refresh()
    assert "next.crt" in cluster.secret()
    assert cluster.bundle == cluster.secret()["ca.crt"]


async def test_a_deleted_secret_is_made_anew_and_the_old_key_no_longer_trusted(
    cluster: Cluster, replica: Callable[..., CertificateSecret]
) -> None:
    one, two = replica(), replica()
    await one.refresh()
    await two.refresh()
    old = cluster.secret()
    del cluster.objects[SECRET]
    await one.refresh()
    await two.refresh()
    assert old["ca.crt"] not in cluster.bundle
    assert shake_hands(one.ssl_context, cluster.bundle) == shake_hands(two.ssl_context, cluster.bundle)


async def test_an_empty_secret_that_a_chart_has_made_is_filled(
    cluster: Cluster, replica: Callable[..., CertificateSecret]
) -> None:
    cluster.put({})
    await replica().refresh()
    assert cluster.writes == [("PATCH", SECRET), ("PATCH", CONFIGURATION)]


@pytest.mark.parametrize("content", [{"tls.crt": b"somebody else's"}, {"ca.crt": make_key_pair(HOSTS, NOW).authority}])
async def test_a_secret_that_holds_something_else_is_left_alone(
    cluster: Cluster, replica: Callable[..., CertificateSecret], content: dict[str, bytes]
) -> None:
    cluster.put(content)
    one = replica()
    with pytest.raises(UnusableKeyPair, match=r"secrets/own-node: "):
        await one.refresh()
    assert cluster.secret() == content
    assert not one.ready.is_set()


async def test_a_secret_that_became_garbage_leaves_the_served_certificate(
    cluster: Cluster, replica: Callable[..., CertificateSecret]
) -> None:
    one = replica()
    await one.refresh()
    bundle = cluster.bundle
    cluster.objects[SECRET]["data"]["tls.crt"] = "no base64!"
    with pytest.raises(UnusableKeyPair, match=r"secrets/own-node: "):
        await one.refresh()
    assert cluster.objects[SECRET]["data"]["tls.crt"] == "no base64!", "it is not touched"
    shake_hands(one.ssl_context, bundle)


async def test_a_bundle_that_was_taken_away_is_written_again(
    cluster: Cluster, replica: Callable[..., CertificateSecret]
) -> None:
    one = replica()
    await one.refresh()
    cluster.configure("own-node.muster.dev", "one.more")
    await one.refresh()
    assert cluster.bundle == one.ca_bundle
    assert cluster.writes.count(("PATCH", SECRET)) == 0


async def test_without_a_configuration_there_is_a_certificate_all_the_same(
    cluster: Cluster, replica: Callable[..., CertificateSecret]
) -> None:
    del cluster.objects[CONFIGURATION]
    one = replica()
    await one.refresh()
    assert cluster.writes == [("POST", SECRET)]
    shake_hands(one.ssl_context, one.ca_bundle)


async def test_a_configuration_that_may_not_be_written_is_told_and_the_certificate_served(
    cluster: Cluster, replica: Callable[..., CertificateSecret]
) -> None:
    cluster.refuse["PATCH", CONFIGURATION] = Forbidden(403, "Forbidden", "no right", CONFIGURATION)
    one = replica()
    with pytest.raises(Forbidden):
        await one.refresh()
    shake_hands(one.ssl_context, one.ca_bundle)


async def test_the_next_one_waits_until_the_configuration_can_be_written(
    cluster: Cluster, clock: WallClock, replica: Callable[..., CertificateSecret]
) -> None:
    one = replica()
    await one.refresh()
    served = shake_hands(one.ssl_context, cluster.bundle)
    cluster.refuse["PATCH", CONFIGURATION] = Forbidden(403, "Forbidden", "no right", CONFIGURATION)
    for _ in range(260):
        clock.now += DAY_S
        try:
            await one.refresh()
        except Forbidden:
            assert shake_hands(one.ssl_context, cluster.bundle) == served
    cluster.refuse.clear()
    await one.refresh()
    await one.refresh()
    assert shake_hands(one.ssl_context, cluster.bundle) != served


async def test_of_two_configurations_both_have_to_trust_the_next_one_before_it_serves(
    cluster: Cluster, clock: WallClock
) -> None:
    """A mutating and a validating one share one server."""
    beside = mutating_webhook_path("own-node")
    cluster.objects[beside] = json.loads(json.dumps(cluster.objects[CONFIGURATION]))
    client, trusting = cast("KubeClient", cluster), [beside, CONFIGURATION]
    one, two = (
        CertificateSecret(client, "muster", "own-node", HOSTS, trusting=trusting, clock=Clock(wall=clock))
        for _ in range(2)
    )

    def bundles() -> list[bytes]:
        kept = [cluster.objects[path]["webhooks"][0]["clientConfig"]["caBundle"] for path in trusting]
        return [base64.b64decode(each) for each in kept]

    await one.refresh()
    await two.refresh()
    assert bundles() == [cluster.bundle] * 2
    first = shake_hands(one.ssl_context, cluster.bundle)
    clock.now += VALID_S - RENEW_S + DAY_S
    cluster.refuse["PATCH", beside] = Forbidden(403, "Forbidden", "no right", beside)
    for _ in range(3):
        for replica in (one, two):
            with pytest.raises(Forbidden):
                await replica.refresh()
        clock.now += 2 * DAY_S
        assert {shake_hands(each.ssl_context, bundle) for each in (one, two) for bundle in bundles()} == {first}
    cluster.refuse.clear()
    await one.refresh()  # both have it now
    assert bundles() == [cluster.secret()["ca.crt"]] * 2
    assert {shake_hands(each.ssl_context, bundle) for each in (one, two) for bundle in bundles()} == {first}
    await one.refresh()
    for bundle in bundles():
        # the one that has not looked yet serves the former one, which stays trusted until it ends
        assert shake_hands(one.ssl_context, bundle) != first
        assert shake_hands(two.ssl_context, bundle) == first
    clock.now += VALID_S
    await one.refresh()
    with pytest.raises(ssl.SSLError):
        shake_hands(two.ssl_context, bundles()[0])


# -- files that somebody else keeps


def write_pair(folder: Path, hosts: tuple[str, ...] = HOSTS, *, key: bytes = b"") -> bytes:
    pair = make_key_pair(hosts, NOW)
    (folder / "tls.crt").write_bytes(pair.certificate)
    (folder / "tls.key").write_bytes(key or pair.key)
    (folder / "ca.crt").write_bytes(pair.authority)
    return pair.authority


async def test_files_are_served_and_read_again_without_a_restart(tmp_path: Path) -> None:
    bundle = write_pair(tmp_path)
    files = CertificateFiles(tmp_path, Clock(wall=lambda: NOW))
    context = files.ssl_context
    first = shake_hands(context, bundle)
    assert files.ready.is_set()
    assert files.ca_bundle == bundle
    assert files.left_s == VALID_S
    bundle = write_pair(tmp_path)
    files.refresh()
    assert shake_hands(context, bundle) != first


async def test_files_that_do_not_belong_together_leave_what_was_served(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bundle = write_pair(tmp_path)
    rounds = asyncio.Semaphore(0)
    told = asyncio.Event()

    async def sleep(seconds: float) -> None:
        told.set()
        await rounds.acquire()
        told.clear()

    files = CertificateFiles(tmp_path, Clock(sleep=sleep))
    first = shake_hands(files.ssl_context, bundle)
    write_pair(tmp_path, key=make_key_pair(HOSTS, NOW).key)
    running = asyncio.create_task(files.run())
    async with asyncio.timeout(60):
        for _ in range(3):
            await told.wait()
            told.clear()
            rounds.release()
        await told.wait()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert shake_hands(files.ssl_context, bundle) == first
    warnings = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == 1
    assert str(tmp_path) in warnings[0]


@pytest.mark.parametrize(
    ("spoil", "name"),
    [
        (lambda folder: (folder / "tls.key").unlink(), "tls.key"),
        (lambda folder: (folder / "tls.crt").write_text("x"), ""),  # both are there, and are no pair
    ],
    ids=["missing", "garbage"],
)
async def test_files_that_cannot_be_served_stop_the_start(
    tmp_path: Path, spoil: Callable[[Path], object], name: str
) -> None:
    write_pair(tmp_path)
    spoil(tmp_path)
    for load in (CertificateFiles, check_key_files):
        with pytest.raises(ConfigError, match=re.escape(str(tmp_path / name))):
            load(tmp_path)


def test_a_usable_pair_passes_the_check(tmp_path: Path) -> None:
    write_pair(tmp_path)
    check_key_files(tmp_path)
