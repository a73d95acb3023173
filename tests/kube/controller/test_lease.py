"""Two or three candidates on one virtual clock, and a server that loses, delays and repeats as the wire does."""

import asyncio
import random
from collections import Counter
from contextlib import suppress
from datetime import UTC, datetime

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster_kube.api.errors import AlreadyExists, Conflict, NotFound, Unreachable
from muster_kube.controller.backoff import AWAY_S
from muster_kube.controller.clock import Clock
from muster_kube.controller.lease import LeaderElector, Lease, LeaseTiming

EPOCH = datetime(2026, 1, 1, tzinfo=UTC).timestamp()


class LeaseServer:
    """The state of one Lease, with optimistic locking."""

    def __init__(self):
        self.lease = None
        self.version = 0
        self.writes = []

    def get(self):
        if self.lease is None:
            raise NotFound(404, "NotFound", "", "")
        return msgspec.convert(self.lease, Lease)

    def create(self, body):
        if self.lease is not None:
            raise AlreadyExists(409, "AlreadyExists", "", "")
        return self._store(msgspec.to_builtins(body))

    def patch(self, body):
        body = msgspec.to_builtins(body)
        if self.lease is None or body["metadata"]["resourceVersion"] != self.lease["metadata"]["resourceVersion"]:
            raise Conflict(409, "Conflict", "", "")
        return self._store({"metadata": {"name": "l"}, "spec": {**self.lease["spec"], **body["spec"]}})

    def _store(self, lease):
        self.version += 1
        lease["metadata"]["resourceVersion"] = str(self.version)
        self.lease = lease
        self.writes.append(dict(lease["spec"]))
        return self.get()


class Wire:
    """A client of ``server`` over a wire of ``faults``: (seconds there, seconds back, lost), played round and round.

    A call that takes longer than the client waits still reaches the server.
    """

    timeout_s = 4.0

    def __init__(self, server, faults=((0.0, 0.0, False),), start=0):
        self.server, self.faults, self.calls = server, faults, start
        self.cut = False
        self.late: set[asyncio.Task] = set()

    async def get(self, path, type):
        return await self._call(self.server.get)

    async def create(self, path, body, type):
        return await self._call(lambda: self.server.create(body))

    async def patch(self, path, body, type):
        return await self._call(lambda: self.server.patch(body))

    async def _call(self, act):
        self.calls += 1
        there, back, lost = self.faults[self.calls % len(self.faults)]
        if self.cut:
            raise Unreachable("cut", "")

        async def arrive():
            await asyncio.sleep(there)
            return act()

        task = asyncio.ensure_future(arrive())
        self.late.add(task)
        task.add_done_callback(lambda t: (self.late.discard(t), t.cancelled() or t.exception()))
        try:
            async with asyncio.timeout(self.timeout_s):
                answer = await asyncio.shield(task)
                await asyncio.sleep(back)
        except TimeoutError:
            raise Unreachable("timeout", "") from None
        if lost:
            raise Unreachable("lost", "")
        return answer


def elector(client, identity, *, offset=0.0, wall=0.0, seed=0, **options):
    loop = asyncio.get_running_loop()
    return LeaderElector(
        client,
        "ns",
        "l",
        identity,
        clock=Clock(
            monotonic=lambda: loop.time() + offset,
            wall=lambda: EPOCH + loop.time() + wall,
            rng=random.Random(seed),
        ),
        **options,
    )


good = st.just((0.0, 0.0, False))
bad = st.tuples(
    st.sampled_from([0.0, 0.01, 1.0, 2.0, 3.9, 5.0, 11.0]), st.sampled_from([0.0, 1.9, 3.9]), st.sampled_from([0, 1])
)
stretches = st.tuples(st.one_of(good, bad), st.integers(1, 8)).map(lambda run: [run[0]] * run[1])
faults = st.lists(stretches, min_size=1, max_size=8).map(lambda runs: [call for run in runs for call in run])


@settings(deadline=None, max_examples=150)
@given(st.lists(st.tuples(st.floats(0, 20), st.floats(10, 90), st.floats(-1e6, 1e6), faults), min_size=2, max_size=3))
def test_never_do_two_lead_at_once(wire, candidates):
    async def main():
        server = LeaseServer()
        electors = []
        leading = Counter()
        leaders = []

        def alone():
            assert sum(e.leading() for e in electors) <= 1

        async def candidate(n, starts, lives, offset, faults):
            one = elector(Wire(server, faults), f"c{n}", offset=offset, wall=-3 * offset, seed=n)
            electors.append(one)

            async def lead():
                assert one.follows_another or leaders[-1] == n
                one.took_over()
                leaders.append(n)
                while True:
                    if one.leading():
                        leading[n] += 1
                    alone()
                    await asyncio.sleep(0.05)

            await asyncio.sleep(starts)
            task = asyncio.create_task(one.run(lead))
            await asyncio.sleep(lives)
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
            assert not one.leading()

        async def watch():
            while True:
                alone()
                await asyncio.sleep(0.05)

        watching = asyncio.create_task(watch())
        async with asyncio.TaskGroup() as group:
            for n, candidacy in enumerate(candidates):
                group.create_task(candidate(n, *candidacy))
        watching.cancel()

    wire.run_virtually(main())


async def lead_for_ever():
    await asyncio.Event().wait()


@pytest.mark.parametrize("seed", range(5))
def test_a_dead_leader_is_followed_at_the_end_of_the_lease_and_not_before(wire, seed):
    async def main():
        loop = asyncio.get_running_loop()
        server = LeaseServer()
        wires = [Wire(server), Wire(server)]
        a, b = elector(wires[0], "a"), elector(wires[1], "b", wall=-1e7, seed=seed)
        task_a = asyncio.create_task(a.run(lead_for_ever))
        await asyncio.sleep(1)
        task_b = asyncio.create_task(b.run(lead_for_ever))
        await asyncio.sleep(30)
        assert a.leading()
        assert not b.leading()
        assert b.holder == "a"
        wires[0].cut = True
        at = loop.time()
        await wire.until(lambda: not a.leading(), 60)
        assert loop.time() - at <= 6.01
        first_seen_at = b._observed.at  # the last record of the one that is gone
        await wire.until(b.leading, 60)
        assert 10 <= loop.time() - first_seen_at <= 10.1
        assert loop.time() - at >= 7.5
        assert server.writes[-1]["leaseTransitions"] == 1
        task_a.cancel()
        task_b.cancel()

    wire.run_virtually(main())


@pytest.mark.parametrize("seed", range(5))
def test_a_candidate_leads_soon_after_the_server_has_returned(wire, seed):
    async def main():
        loop = asyncio.get_running_loop()
        client = Wire(LeaseServer())
        client.cut = True
        one = elector(client, "a", seed=seed)
        task = asyncio.create_task(one.run(lead_for_ever))
        await asyncio.sleep(60)
        client.cut = False
        at = loop.time()
        await wire.until(one.leading, 60)
        assert loop.time() - at <= 1.5 * AWAY_S + 0.1
        assert client.calls <= 62 / (0.5 * AWAY_S)
        task.cancel()

    wire.run_virtually(main())


def test_a_clean_exit_lets_the_next_one_in_at_once(wire):
    async def main():
        loop = asyncio.get_running_loop()
        server = LeaseServer()
        a, b = elector(Wire(server), "a"), elector(Wire(server), "b")
        task_a = asyncio.create_task(a.run(lead_for_ever))
        await asyncio.sleep(1)
        task_b = asyncio.create_task(b.run(lead_for_ever))
        await asyncio.sleep(10)
        task_a.cancel()
        at = loop.time()
        await wire.until(b.leading, 60)
        assert loop.time() - at <= 2.5
        task_b.cancel()

    wire.run_virtually(main())


def test_the_leader_is_cancelled_and_awaited_when_the_lease_is_lost(wire):
    async def main():
        server = LeaseServer()
        client = Wire(server)
        one = elector(client, "a")
        led = []
        ended = asyncio.Event()

        async def lead():
            led.append(True)
            try:
                await lead_for_ever()
            finally:
                led.append(False)
                await asyncio.sleep(3)
                ended.set()

        task = asyncio.create_task(one.run(lead))
        await asyncio.sleep(1)
        assert one.leading()
        client.cut = True
        await asyncio.sleep(6.1)
        assert not one.leading()
        assert not ended.is_set()
        client.cut = False
        await asyncio.sleep(1)
        assert not one.leading(), "it must not lead again before its former self has ended"
        await asyncio.sleep(5)
        assert ended.is_set()
        assert one.leading()
        assert led == [True, False, True]
        task.cancel()

    wire.run_virtually(main())


def test_a_call_in_flight_at_the_deadline_does_not_keep_the_leader_running(wire):
    async def main():
        loop = asyncio.get_running_loop()
        server = LeaseServer()
        client = Wire(server)
        one = elector(client, "a")
        ended = []

        async def lead():
            try:
                await lead_for_ever()
            finally:
                ended.append(loop.time())

        task = asyncio.create_task(one.run(lead))
        await asyncio.sleep(1)
        client.faults = ((3.9, 0.0, False),)
        await asyncio.sleep(20)
        renewed = 0.0
        assert ended
        assert ended[0] - renewed <= 6.01
        task.cancel()

    wire.run_virtually(main())


def test_a_machine_that_slept_knows_at_once_that_it_has_lost(wire):
    async def main():
        server = LeaseServer()
        asleep = 0.0
        loop = asyncio.get_running_loop()
        one = LeaderElector(Wire(server), "ns", "l", "a", clock=Clock(monotonic=lambda: loop.time() + asleep))
        task = asyncio.create_task(one.run(lead_for_ever))
        await asyncio.sleep(1)
        assert one.leading()
        asleep = 3600.0
        assert not one.leading()
        task.cancel()

    wire.run_virtually(main())


def test_a_leader_that_ends_by_itself_releases_and_returns(wire):
    async def main():
        server = LeaseServer()

        async def lead():
            await asyncio.sleep(5)

        await elector(Wire(server), "a").run(lead)
        assert server.lease["spec"]["holderIdentity"] == ""

    wire.run_virtually(main())


def test_a_leaders_error_is_raised_after_the_release(wire):
    async def main():
        server = LeaseServer()

        async def lead():
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await elector(Wire(server), "a").run(lead)
        assert server.lease["spec"]["holderIdentity"] == ""

    wire.run_virtually(main())


def test_a_conflict_while_renewing_is_looked_at_again(wire):
    async def main():
        server = LeaseServer()
        one = elector(Wire(server, ((0.5, 0.0, False),)), "a")
        task = asyncio.create_task(one.run(lead_for_ever))
        await asyncio.sleep(1.2)
        for _ in range(40):  # somebody labels the Lease now and then
            await asyncio.sleep(1.7)
            server.lease["metadata"]["resourceVersion"] = f"x{server.version}"
            assert one.leading()
        task.cancel()

    wire.run_virtually(main())


def test_a_record_that_asks_for_years_does_not_lock_everybody_out(wire):
    async def main():
        server = LeaseServer()
        server.create({"metadata": {"name": "l"}, "spec": {"holderIdentity": "x", "leaseDurationSeconds": 10**9}})
        one = elector(Wire(server), "a")
        task = asyncio.create_task(one.run(lead_for_ever))
        await asyncio.sleep(59)
        assert not one.leading()
        await asyncio.sleep(5)
        assert one.leading()
        task.cancel()

    wire.run_virtually(main())


@pytest.mark.parametrize(
    "times",
    [{"duration_s": 6.0}, {"renew_deadline_s": 11.0}, {"retry_s": 5.0}, {"renew_deadline_s": 6.5}],
)
def test_times_that_leave_no_room_are_refused(times):
    with pytest.raises(ValueError, match="expected"):
        LeaderElector(Wire(LeaseServer()), "ns", "l", "a", timing=LeaseTiming(**times))


def test_the_deadline_counts_from_the_start_of_the_renewal(wire):
    async def main():
        loop = asyncio.get_running_loop()
        client = Wire(LeaseServer(), ((0.0, 1.9, False),))
        one = elector(client, "a")
        task = asyncio.create_task(one.run(lead_for_ever))
        await wire.until(one.leading, 60)
        client.cut = True
        assert loop.time() == pytest.approx(1.9)  # asked at 0
        await wire.until(lambda: not one.leading(), 60)
        assert loop.time() == pytest.approx(6.0, abs=0.01)
        task.cancel()

    wire.run_virtually(main())


def test_a_leader_whose_calls_are_slow_renews_earlier_and_keeps_the_lease(wire):
    """Calls of 1.2 s: a renewal takes two of them, so after a whole pause the next one would end after the deadline."""

    async def main():
        led = []

        async def lead():
            led.append(True)
            await lead_for_ever()

        one = elector(Wire(LeaseServer(), ((0.6, 0.6, False),)), "a")
        task = asyncio.create_task(one.run(lead))
        await wire.until(one.leading, 60)
        await asyncio.sleep(120)
        assert one.leading()
        assert len(led) == 1
        task.cancel()

    wire.run_virtually(main())


def test_a_late_renewal_of_a_former_leader_changes_nothing(wire):
    async def main():
        server = LeaseServer()
        slow = Wire(server)
        a, b = elector(slow, "a"), elector(Wire(server), "b")
        task_a = asyncio.create_task(a.run(lead_for_ever))
        await asyncio.sleep(1)
        task_b = asyncio.create_task(b.run(lead_for_ever))
        reads = server.get
        slow.faults = ((0.0, 0.0, False), (25.0, 0.0, False))
        slow.calls = 1
        await asyncio.sleep(4)
        slow.cut = True
        await wire.until(b.leading, 60)
        assert any(not task.done() for task in slow.late), "the late write is still on its way"
        await asyncio.sleep(30)
        assert not slow.late
        assert reads().spec.holder_identity == "b"
        assert b.leading()
        task_a.cancel()
        task_b.cancel()

    wire.run_virtually(main())


def test_who_loses_the_lease_before_it_has_taken_over_follows_the_other_still(wire):
    async def main():
        server = LeaseServer()
        wires = [Wire(server), Wire(server)]
        a, b = elector(wires[0], "a"), elector(wires[1], "b")
        begun = []

        async def lead(one, name):
            begun.append((name, one.follows_another))
            await lead_for_ever()

        tasks = [asyncio.create_task(a.run(lambda: lead(a, "a")))]
        await asyncio.sleep(5)
        wires[0].cut = True
        tasks.append(asyncio.create_task(b.run(lambda: lead(b, "b"))))
        await wire.until(b.leading, 60)
        await asyncio.sleep(1)
        wires[1].cut = True
        await wire.until(lambda: not b.leading(), 60)
        wires[1].cut = False
        await wire.until(b.leading, 60)
        await asyncio.sleep(1)
        assert begun[1:] == [("b", True), ("b", True)]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    wire.run_virtually(main())


def test_a_leader_that_gets_its_own_lease_back_follows_nobody(wire):
    async def main():
        server = LeaseServer()
        wires = [Wire(server), Wire(server)]
        a, b = elector(wires[0], "a"), elector(wires[1], "b")
        begun = []

        async def lead(one, name):
            begun.append((name, one.follows_another))
            one.took_over()
            await lead_for_ever()

        tasks = [asyncio.create_task(a.run(lambda: lead(a, "a")))]
        await asyncio.sleep(5)
        wires[0].cut = True
        await wire.until(lambda: not a.leading(), 60)
        wires[0].cut = False
        await wire.until(a.leading, 60)
        await asyncio.sleep(1)
        tasks.append(asyncio.create_task(b.run(lambda: lead(b, "b"))))
        wires[0].cut = True
        await wire.until(b.leading, 60)
        wires[0].cut, wires[1].cut = False, True
        await wire.until(a.leading, 60)
        await asyncio.sleep(1)
        assert begun == [("a", True), ("a", False), ("b", True), ("a", True)]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    wire.run_virtually(main())
