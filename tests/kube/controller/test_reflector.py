import asyncio
import json
import random
from contextlib import asynccontextmanager, suppress

import pytest

from muster_kube.api.client import KubeClient
from muster_kube.api.objects import Metadata, Node, intern_node
from muster_kube.controller.backoff import AWAY_S, Backoff
from muster_kube.controller.clock import Clock
from muster_kube.controller.reflector import HEALTHY_S, Reflector

PATH = "/api/v1/nodes"


class Watched:
    """A reflector that runs, with all it told."""

    def __init__(self, client, fake_time, **options):
        self.changes = []
        self.undecodable = []
        options = {"backoff": Backoff(1.0, 30.0), **options}
        self.reflector = Reflector(
            client,
            PATH,
            Node,
            on_change=lambda key, old, new: self.changes.append((key, version(old), version(new))),
            on_undecodable=lambda key, raw, error: self.undecodable.append((key, raw, error)),
            clock=Clock(monotonic=fake_time.clock, sleep=fake_time.sleep, rng=random.Random(1)),
            **options,
        )


def version(node):
    return node and node.metadata.resource_version


@asynccontextmanager
async def running(reflector):
    task = asyncio.create_task(reflector.run())
    try:
        yield task
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


@pytest.fixture
def watched(client, fake_time):
    return Watched(client, fake_time)


async def test_the_first_list_comes_from_the_cache_and_the_watch_goes_on_from_it(api, watched, wire):
    api.on("GET", PATH, wire.Reply(200, wire.listing(10, wire.node("a", 3), wire.node("b", 5))))
    api.on("WATCH", PATH, wire.Stream((wire.event("MODIFIED", wire.node("a", 11)),)))
    assert not watched.reflector.synced
    async with running(watched.reflector):
        await wire.until(lambda: len(watched.changes) == 3)
        assert watched.reflector.connected
        assert watched.reflector.synced
    assert watched.changes == [("a", None, "3"), ("b", None, "5"), ("a", "3", "11")]
    (listed,) = api.asked_for("GET")
    assert listed.query == {"resourceVersion": "0", "limit": "500"}
    (watch,) = api.asked_for("WATCH")
    assert watch.query["resourceVersion"] == "10"
    assert watch.query["allowWatchBookmarks"] == "true"
    assert 300 <= int(watch.query["timeoutSeconds"]) <= 600
    assert "resourceVersionMatch" not in listed.query
    assert not watched.reflector.connected


async def test_with_newest_the_first_list_is_read_from_etcd(api, client, fake_time, wire):
    watched = Watched(client, fake_time, newest=True)
    api.on("GET", PATH, wire.Reply(200, wire.listing(10, wire.node("a", 3))))
    api.on("WATCH", PATH, wire.Stream())
    async with running(watched.reflector):
        await wire.until(lambda: watched.reflector.connected)
    (listed,) = api.asked_for("GET")
    assert "resourceVersion" not in listed.query
    assert watched.changes == [("a", None, "3")]


async def test_selectors_go_with_every_request(api, client, fake_time, wire):
    watched = Watched(client, fake_time, params={"labelSelector": "pool=x"})
    api.on("GET", PATH, wire.Reply(200, wire.listing(10, more="c")), wire.Reply(200, wire.listing(10)))
    api.on("WATCH", PATH, wire.Stream())
    async with running(watched.reflector):
        await wire.until(lambda: watched.reflector.connected)
    assert [a.query["labelSelector"] for a in api.asked] == ["pool=x"] * 3


async def test_pages_are_followed_without_a_version(api, watched, wire):
    api.on(
        "GET",
        PATH,
        wire.Reply(200, wire.listing(10, wire.node("a", 3), more="next")),
        wire.Reply(200, wire.listing(10, wire.node("b", 5))),
    )
    api.on("WATCH", PATH, wire.Stream())
    async with running(watched.reflector):
        await watched.reflector.wait_synced()
    assert api.asked_for("GET")[1].query == {"limit": "500", "continue": "next"}
    assert set(watched.reflector.store) == {"a", "b"}


async def test_nothing_is_synced_before_the_last_page(api, watched, wire):
    api.on("GET", PATH, wire.Reply(200, wire.listing(10, wire.node("a", 3), more="next")), wire.Stream())
    async with running(watched.reflector):
        await wire.until(lambda: len(api.asked) == 2)
        assert not watched.reflector.synced


async def test_a_watch_that_ends_goes_on_after_the_last_event_without_a_list(api, watched, wire, fake_time):
    api.on("GET", PATH, wire.Reply(200, wire.listing(10)))
    api.on("WATCH", PATH, wire.Stream((wire.event("ADDED", wire.node("a", 12)),), then="end"), wire.Stream())
    async with running(watched.reflector):
        await wire.until(lambda: len(api.asked_for("WATCH")) == 2)
    assert api.asked_for("WATCH")[1].query["resourceVersion"] == "12"
    assert len(api.asked_for("GET")) == 1


async def test_a_bookmark_moves_the_place_to_go_on_from(api, watched, wire):
    bookmark = {"kind": "Node", "metadata": {"resourceVersion": "99", "creationTimestamp": None}, "spec": {}}
    api.on("GET", PATH, wire.Reply(200, wire.listing(10)))
    api.on("WATCH", PATH, wire.Stream((wire.event("BOOKMARK", bookmark),), then="end"), wire.Stream())
    async with running(watched.reflector):
        await wire.until(lambda: len(api.asked_for("WATCH")) == 2)
    assert api.asked_for("WATCH")[1].query["resourceVersion"] == "99"
    assert watched.changes == watched.undecodable == []


@pytest.mark.parametrize("how", ["status", "event"])
async def test_gone_lists_anew_from_etcd_and_tells_what_vanished(api, watched, wire, how):
    api.on(
        "GET",
        PATH,
        wire.Reply(200, wire.listing(10, wire.node("a", 3), wire.node("b", 5), wire.node("c", 6))),
        wire.Reply(200, wire.listing(50, wire.node("a", 3), wire.node("b", 45))),
    )
    gone = wire.failure(410, "Expired")
    first = wire.Reply(410, gone) if how == "status" else wire.Stream((wire.event("ERROR", gone),))
    api.on("WATCH", PATH, first, wire.Stream())
    async with running(watched.reflector):
        await wire.until(lambda: len(api.asked_for("WATCH")) == 2)
    assert watched.changes[3:] == [("b", "5", "45"), ("c", "6", None)]
    assert api.asked_for("GET")[1].query == {"limit": "500"}
    assert api.asked_for("WATCH")[1].query["resourceVersion"] == "50"


async def test_a_server_behind_our_version_is_listed_from_etcd(api, watched, wire):
    too_large = {**wire.failure(504, "Timeout"), "details": {"causes": [{"reason": "ResourceVersionTooLarge"}]}}
    api.on("GET", PATH, wire.Reply(200, wire.listing(10)), wire.Reply(200, wire.listing(12)))
    api.on("WATCH", PATH, wire.Reply(504, too_large), wire.Stream((wire.event("ERROR", too_large),)), wire.Stream())
    async with running(watched.reflector):
        await wire.until(lambda: len(api.asked_for("WATCH")) == 3)
    assert [a.query for a in api.asked_for("GET")[1:]] == [{"limit": "500"}] * 2


async def test_an_etcd_restored_from_the_past_replaces_what_we_hold(api, watched, wire):
    api.on(
        "GET",
        PATH,
        wire.Reply(200, wire.listing(100, wire.node("a", 90), wire.node("b", 95), wire.node("c", 48))),
        wire.Reply(200, wire.listing(50, wire.node("a", 40), wire.node("c", 48, written="anew"))),
    )
    api.on("WATCH", PATH, wire.Reply(410, wire.failure(410, "Expired")), wire.Stream())
    async with running(watched.reflector):
        await wire.until(lambda: len(api.asked_for("WATCH")) == 2)
    assert watched.changes[3:] == [("a", "90", "40"), ("c", "48", "48"), ("b", "95", None)]
    assert watched.reflector.store["c"].metadata.labels == {"written": "anew"}


async def test_a_storm_of_503_is_met_with_growing_jittered_pauses(api, watched, wire, fake_time):
    api.on("GET", PATH, wire.Reply(200, wire.listing(10)))
    api.on("WATCH", PATH, wire.Reply(503, wire.failure(503, "ServiceUnavailable")))
    fake_time.limit = 40
    async with running(watched.reflector):
        await wire.until(lambda: len(fake_time.slept) == 40)
    for n, slept in enumerate(fake_time.slept):
        middle = min(30.0, 2.0**n)
        assert 0.5 * middle <= slept <= 1.5 * middle
    assert len(set(fake_time.slept)) == 40
    assert len(api.asked_for("WATCH")) == 40
    assert len(api.asked_for("GET")) == 1


@pytest.mark.parametrize("then", ["end", "cut"])
async def test_a_watch_that_closes_at_once_is_met_with_growing_pauses_too(api, watched, wire, fake_time, then):
    api.on("GET", PATH, wire.Reply(200, wire.listing(10)))
    api.on("WATCH", PATH, wire.Stream(then=then))
    fake_time.limit = 12
    async with running(watched.reflector):
        await wire.until(lambda: len(fake_time.slept) == 12)
    assert fake_time.slept[-1] >= 15
    assert not watched.reflector.connected


async def test_a_server_that_is_away_is_tried_about_every_second(config, fake_time, wire):
    async with KubeClient(config.__class__(origin="x", server="http://127.0.0.1:1")) as client:
        watched = Watched(client, fake_time)
        fake_time.limit = 30
        async with running(watched.reflector):
            await wire.until(lambda: len(fake_time.slept) == 30)
        assert all(0.5 * AWAY_S <= slept <= 1.5 * AWAY_S for slept in fake_time.slept[1:])
        assert len(set(fake_time.slept)) == 30, "a fleet does not try all at once"
        assert "127.0.0.1:1" in watched.reflector.error
        assert not watched.reflector.synced


async def test_a_server_that_has_just_returned_may_reject_calls_without_a_long_pause(api, watched, wire, fake_time):
    api.on("GET", PATH, wire.Reply(200, wire.listing(10)))
    away, starting = wire.Drop(), wire.Reply(404, wire.failure(404, "NotFound"))
    api.on("WATCH", PATH, wire.Stream(then="end"), *[away] * 12, *[starting] * 5, wire.Stream())
    async with running(watched.reflector):
        await wire.until(lambda: watched.reflector.connected and len(api.asked_for("WATCH")) == 19)
    assert max(fake_time.slept) <= 1.5


async def test_a_server_that_answers_gone_for_ever_is_met_with_growing_pauses(api, watched, wire, fake_time):
    api.on("GET", PATH, wire.Reply(200, wire.listing(10)))
    api.on("WATCH", PATH, wire.Reply(410, wire.failure(410, "Expired")))
    fake_time.limit = 12
    async with running(watched.reflector):
        await wire.until(lambda: len(fake_time.slept) == 12)
    assert fake_time.slept[0] == 0
    assert fake_time.slept[-1] >= 15


async def test_a_watch_that_lived_starts_the_pauses_anew_and_stays_connected(api, watched, wire, fake_time):
    def live(asked):
        fake_time.now += HEALTHY_S
        return wire.Stream(then="end")

    api.on("GET", PATH, wire.Reply(200, wire.listing(10)))
    api.on("WATCH", PATH, *[wire.Stream(then="cut")] * 4, live, wire.Stream(then="cut"), wire.Stream())
    fake_time.limit = 7
    async with running(watched.reflector):
        await wire.until(lambda: len(fake_time.slept) == 6)
    assert fake_time.slept[3] >= 4
    assert fake_time.slept[4] <= 0.1
    assert fake_time.slept[5] <= 1.5


async def test_a_server_that_names_a_time_is_given_it(api, watched, wire, fake_time):
    api.on("GET", PATH, wire.Reply(200, wire.listing(10)))
    api.on("WATCH", PATH, wire.Reply(429, b"{}", {"Retry-After": "77"}), wire.Stream())
    async with running(watched.reflector):
        await wire.until(lambda: watched.reflector.connected)
    assert fake_time.slept[-1] == 77


async def test_a_line_cut_in_the_middle_is_dropped_and_read_again(api, watched, wire):
    whole = wire.event("ADDED", wire.node("a", 12))
    api.on("GET", PATH, wire.Reply(200, wire.listing(10)))
    api.on("WATCH", PATH, wire.Stream((whole[:20],), then="cut"), wire.Stream((whole[:9], whole[9:])))
    async with running(watched.reflector):
        await wire.until(lambda: watched.changes)
    assert api.asked_for("WATCH")[1].query["resourceVersion"] == "10"
    assert watched.changes == [("a", None, "12")]


async def test_a_watch_silent_beyond_its_time_is_dropped(api, client, fake_time, wire, monkeypatch):
    monkeypatch.setattr("muster_kube.controller.reflector.WATCH_S", (0.0, 0.0))
    monkeypatch.setattr("muster_kube.controller.reflector.SILENCE_MARGIN_S", 0.05)
    watched = Watched(client, fake_time)
    api.on("GET", PATH, wire.Reply(200, wire.listing(10)))
    api.on("WATCH", PATH, wire.Stream(then="hang"))
    async with running(watched.reflector):
        await wire.until(lambda: len(api.asked_for("WATCH")) >= 2)
        assert "timeout" in watched.reflector.error or watched.reflector.connected


async def test_garbage_ends_the_watch_which_goes_on_where_it_was(api, watched, wire):
    good = wire.event("ADDED", wire.node("a", 12))
    api.on("GET", PATH, wire.Reply(200, wire.listing(10)))
    api.on("WATCH", PATH, wire.Stream((good, b"<html>\n")), wire.Stream())
    async with running(watched.reflector):
        await wire.until(lambda: len(api.asked_for("WATCH")) == 2)
    assert api.asked_for("WATCH")[1].query["resourceVersion"] == "12"


async def test_an_object_that_does_not_fit_is_told_of_and_the_watch_goes_on(api, watched, wire):
    bad = {"metadata": {"name": "b", "resourceVersion": "12"}, "spec": {"taints": "nonsense"}}
    events = (wire.event("MODIFIED", bad), wire.event("ADDED", wire.node("c", 13)))
    api.on("GET", PATH, wire.Reply(200, wire.listing(10, wire.node("b", 5), {"metadata": {"name": "z"}, "spec": 1})))
    api.on("WATCH", PATH, wire.Stream(events))
    async with running(watched.reflector):
        await wire.until(lambda: len(watched.changes) == 2)
    assert [item[0] for item in watched.undecodable] == ["z", "b"]
    assert json.loads(watched.undecodable[1][1]) == bad
    assert "$.object.spec.taints" in watched.undecodable[1][2]
    assert version(watched.reflector.store["b"]) == "5"
    assert len(api.asked_for("WATCH")) == 1


async def test_an_object_that_is_nested_too_deeply_ends_no_watch(api, watched, wire):
    def nested(kind):
        deep = b'{"a":' * 9_900 + b"1" + b"}" * 9_900
        return b'{"type":"%s","object":{"metadata":{"name":"b","resourceVersion":"12"},"spec":%s}}\n' % (kind, deep)

    events = (nested(b"MODIFIED"), nested(b"DELETED"), wire.event("ADDED", wire.node("c", 14)))
    api.on("GET", PATH, wire.Reply(200, wire.listing(10, wire.node("b", 5))))
    api.on("WATCH", PATH, wire.Stream(events))
    async with running(watched.reflector):
        await wire.until(lambda: len(watched.changes) == 3)
    assert watched.changes == [("b", None, "5"), ("b", "5", None), ("c", None, "14")]
    assert [item[0] for item in watched.undecodable] == ["b"]
    assert len(api.asked_for("WATCH")) == 1


async def test_an_object_that_does_not_fit_is_gone_once_it_is_deleted(api, watched, wire):
    bad = {"metadata": {"name": "b", "resourceVersion": "12"}, "spec": 1}
    fits = wire.node("c", 14)
    events = (wire.event("ADDED", bad), wire.event("DELETED", bad), wire.event("DELETED", fits))
    api.on("GET", PATH, wire.Reply(200, wire.listing(10, {**fits, "spec": 1})))
    api.on("WATCH", PATH, wire.Stream(events))
    async with running(watched.reflector):
        await wire.until(lambda: len(watched.changes) == 2)
    assert watched.changes == [("b", None, None), ("c", None, None)]


async def test_an_object_that_does_not_fit_is_not_taken_for_deleted_by_a_new_list(api, watched, wire):
    bad = {**wire.node("b", 20), "spec": 1}
    api.on(
        "GET",
        PATH,
        wire.Reply(200, wire.listing(10, wire.node("b", 5))),
        wire.Reply(200, wire.listing(30, bad)),
        wire.Reply(200, wire.listing(40)),
    )
    gone = wire.Reply(410, wire.failure(410, "Expired"))
    api.on("WATCH", PATH, gone, gone, wire.Stream())
    async with running(watched.reflector):
        await wire.until(lambda: len(api.asked_for("WATCH")) == 3)
    assert watched.changes == [("b", None, "5"), ("b", "5", None)]
    assert [item[0] for item in watched.undecodable] == ["b"]


def written(name: str, at: int) -> Node:
    return Node(metadata=Metadata(name=name, resource_version=str(at)))


async def test_what_a_write_returned_is_not_undone_by_an_older_event(api, watched, wire):
    api.on("GET", PATH, wire.Reply(200, wire.listing(10, wire.node("a", 3))))
    events = [wire.event("MODIFIED", wire.node("a", n)) for n in (11, 15, 16)]

    def later(asked):
        watched.reflector.observe(written("a", 15))
        return wire.Stream(tuple(events))

    api.on("WATCH", PATH, later)
    async with running(watched.reflector):
        await wire.until(lambda: len(watched.changes) == 3)
    assert watched.changes == [("a", None, "3"), ("a", "3", "15"), ("a", "15", "16")]


async def test_a_write_answered_after_its_object_was_deleted_does_not_bring_it_back(api, watched, wire):
    api.on("GET", PATH, wire.Reply(200, wire.listing(10, wire.node("a", 3))))
    api.on("WATCH", PATH, wire.Stream((wire.event("DELETED", wire.node("a", 12)),)))
    async with running(watched.reflector):
        await wire.until(lambda: len(watched.changes) == 2)
        watched.reflector.observe(written("a", 11))
    assert dict(watched.reflector.store) == {}


async def test_a_write_newer_than_a_list_survives_it(api, watched, wire):
    def later(asked):
        watched.reflector.observe(written("a", 60))
        watched.reflector.observe(written("new", 61))
        return wire.Reply(410, wire.failure(410, "Expired"))

    api.on(
        "GET",
        PATH,
        wire.Reply(200, wire.listing(10, wire.node("a", 3))),
        wire.Reply(200, wire.listing(50, wire.node("a", 40))),
    )
    api.on("WATCH", PATH, later, wire.Stream())
    async with running(watched.reflector):
        await wire.until(lambda: len(api.asked_for("WATCH")) == 2)
    assert {key: version(node) for key, node in watched.reflector.store.items()} == {"a": "60", "new": "61"}


async def test_an_error_in_the_consumer_is_not_hidden(api, client, wire, fake_time):
    def broken(key, old, new):
        raise ZeroDivisionError

    api.on("GET", PATH, wire.Reply(200, wire.listing(10, wire.node("a", 3))))
    with pytest.raises(ZeroDivisionError):
        await Reflector(client, PATH, Node, on_change=broken).run()


async def test_a_steady_watch_asks_for_nothing_more(api, watched, wire):
    api.on("GET", PATH, wire.Reply(200, wire.listing(10)))
    api.on("WATCH", PATH, wire.Stream())
    async with running(watched.reflector):
        await wire.until(lambda: watched.reflector.connected)
        await asyncio.sleep(0.1)
    assert len(api.asked) == 2


async def test_the_transform_decides_what_is_stored(api, client, fake_time, wire):
    watched = Watched(client, fake_time, transform=intern_node)
    raw = wire.node("a", 3, pool="x")
    raw["metadata"]["annotations"] = {"huge": "x" * 2000, "muster.dev/faults": "y" * 2000}
    raw["status"] = {"conditions": [{"type": "Ready", "status": "True", "lastHeartbeatTime": "2026-01-01T00:00:00Z"}]}
    api.on("GET", PATH, wire.Reply(200, wire.listing(10, raw)))
    api.on("WATCH", PATH, wire.Stream())
    async with running(watched.reflector):
        await watched.reflector.wait_synced()
    (node,) = watched.reflector.store.values()
    assert set(node.metadata.annotations) == {"muster.dev/faults"}
    assert node.metadata.labels == {"pool": "x"}
    assert node.status.conditions[0].last_heartbeat_time is None


class _KeepsNothing(dict):
    def __setitem__(self, key, value):
        pass


async def test_a_store_that_keeps_nothing_is_told_of_every_object_each_time(api, client, fake_time, wire):
    watched = Watched(client, fake_time, objects=_KeepsNothing())
    listing = wire.Reply(200, wire.listing(10, wire.node("a", 3)))
    api.on("GET", PATH, listing, listing)
    gone = wire.event("ERROR", wire.failure(410, "Expired"))
    events = (wire.event("MODIFIED", wire.node("a", 11)), wire.event("DELETED", wire.node("a", 12)), gone)
    api.on("WATCH", PATH, wire.Stream(events), wire.Stream())
    async with running(watched.reflector):
        await wire.until(lambda: len(api.asked_for("WATCH")) == 2)
    assert watched.changes == [("a", None, "3"), ("a", None, "11"), ("a", None, "3")]
    assert not watched.reflector.store


@pytest.mark.parametrize(("rest_s", "rests"), [(0.0, False), (0.25, True)])
async def test_a_busy_watch_is_read_with_rests(api, client, fake_time, wire, rest_s, rests):
    watched = Watched(client, fake_time, rest_s=rest_s)
    api.on("GET", PATH, wire.Reply(200, wire.listing(10)))
    api.on(
        "WATCH", PATH, wire.Stream((wire.event("ADDED", wire.node("a", 11)), wire.event("ADDED", wire.node("b", 12))))
    )
    clock = fake_time.clock

    def slow_clock():
        fake_time.now += 0.01  # each wait for an event takes time: all were read
        return clock()

    watched.reflector._clock = Clock(monotonic=slow_clock, sleep=fake_time.sleep, rng=random.Random(1))
    async with running(watched.reflector):
        await wire.until(lambda: len(watched.changes) == 2)
        await asyncio.sleep(0)
    assert (0.25 in fake_time.slept) == rests
