"""One PATCH for a change and none without, against a server that is a dictionary and a clock that stands still."""

import asyncio
import random
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from tests.loop_time import LoopTime

from muster_agent.clock import AgentClock
from muster_agent.findings.health_status import CheckView, compose_status
from muster_agent.metrics.agent_metrics import AgentMetrics
from muster_agent.publish.node_claim import NodeClaim
from muster_agent.publish.publisher import RIDE_ALONG_S, OwnNodeHealth, Publisher
from muster_checks.base.vocabulary import Finding, Verdict
from muster_kube.api.errors import ApiError, Conflict, NotFound, TooManyRequests, Unreachable
from muster_kube.controller.backoff import AWAY_S
from muster_kube.nodehealth import AgentIdentity, Metadata, NodeHealth, NodeHealthStatus

BAD = Finding(component="gpu/0", verdict=Verdict.FAIL, reason="Xid79", message="off the bus", first_seen=5, last_seen=5)


class FakeServer:
    """One NodeHealth; merge patches with resourceVersions, as the API server does them."""

    def __init__(self) -> None:
        self.raw: dict[str, Any] = {}
        self.version = 1
        self.uid = "u1"
        self.patches: list[dict[str, Any]] = []
        self.failures: list[ApiError] = []
        self.gone = False
        self.lose_answer = False
        self.before_answer: Callable[[], None] = lambda: None  # what happens while an answer is on its way
        self.prune: tuple[str, ...] = ()

    def health(self) -> NodeHealth:
        body = {"metadata": {"name": "n1", "uid": self.uid, "resourceVersion": str(self.version)}, "status": self.raw}
        return msgspec.convert(body, NodeHealth)

    def edit(self, **status: Any) -> NodeHealth:
        """By somebody else."""
        self.raw = _merge(self.raw, status)
        self.version += 1
        return self.health()

    async def get(self, path: str, *, type: type[NodeHealth]) -> NodeHealth:
        if self.gone:
            raise NotFound(404, "NotFound", "gone", path)
        return self._answer()

    def _answer(self) -> NodeHealth:
        answer = self.health()
        meanwhile, self.before_answer = self.before_answer, lambda: None
        meanwhile()
        return answer

    def make_anew(self) -> None:
        self.raw, self.uid = {}, f"{self.uid}+"
        self.version += 2  # deleted, created

    async def patch(self, path: str, body: Any, *, type: type[NodeHealth], timeout_s: float = 0) -> NodeHealth:
        assert path == "/apis/muster.dev/v1alpha1/nodehealths/n1/status"
        if self.failures:
            raise self.failures.pop(0)
        if self.gone:
            raise NotFound(404, "NotFound", "gone", path)
        body = msgspec.json.decode(msgspec.json.encode(body))
        expected = body.get("metadata", {}).get("resourceVersion")
        if expected not in (None, str(self.version)):
            raise Conflict(409, "Conflict", "modified", path)
        self.patches.append(body["status"])
        self.edit(**body["status"])
        for field in self.prune:
            self.raw.pop(field, None)
        if self.lose_answer:
            self.lose_answer = False
            raise Unreachable("timeout", path)
        return self._answer()


def _merge(old: Any, patch: Any) -> Any:
    if not isinstance(patch, dict):
        return patch
    merged = dict(old) if isinstance(old, dict) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = _merge(merged.get(key), value)
    return merged


class Bench:
    def __init__(self) -> None:
        self.now = 1_000.0
        self.server = FakeServer()
        self.checks = [CheckView(name="dmesg", verdict=Verdict.PASS)]
        self.silent = False
        self.foreign: list[tuple[str, bool]] = []
        self.metrics = AgentMetrics("n1", "1")
        self.publisher = Publisher(
            OwnNodeHealth(self.server, "n1"),
            NodeClaim("pod-1"),
            self,
            self.metrics,
            clock=AgentClock(monotonic=lambda: self.now, wall=lambda: self.now),
            rng=random.Random(1),
        )

    def desired(self) -> NodeHealthStatus | None:
        return (
            None
            if self.silent
            else compose_status(self.checks, boot_id="boot", agent=AgentIdentity(pod_uid="pod-1", version="1"))
        )

    def apply_health(self, health: NodeHealth) -> None:
        pass

    def disown(self, status: NodeHealthStatus, *, published: bool) -> bool:
        self.foreign.append((status.verdict, published))
        return False

    def fail(self, count: int = 1) -> None:
        finding = msgspec.structs.replace(BAD, count=count)
        self.checks = [CheckView(name="dmesg", verdict=Verdict.FAIL, reason="Xid79", findings=(finding,))]

    def see(self, health: NodeHealth | None = None) -> None:
        self.publisher.observe("n1", None, health or self.server.health())

    async def settle(self, limit: int = 50) -> float | None:
        """Step until nothing is due now; returns when it wants to look again."""
        for _ in range(limit):
            wait = await self.publisher.step()
            if wait is None or wait > 0:
                return wait
        pytest.fail("the publisher does not come to rest")

    @property
    def writes(self) -> int:
        return len(self.server.patches)


@pytest.fixture
async def bench() -> Bench:
    """A healthy node that has been published."""
    made = Bench()
    made.see()
    await made.settle()
    assert made.writes == 1
    return made


async def test_a_healthy_node_is_written_once_and_never_again(bench: Bench):
    for _ in range(100):
        bench.now += 3_600
        bench.publisher.notify_progress()
        assert await bench.settle() is None
    assert bench.writes == 1
    assert bench.publisher.unpublished_since is None


async def test_a_change_is_one_patch_and_what_went_back_to_empty_is_removed(bench: Bench):
    bench.fail()
    bench.publisher.notify_change()
    await bench.settle()
    assert bench.writes == 2
    assert bench.server.raw["failing"] == "dmesg"
    assert bench.server.raw["checks"][0]["findings"][0]["occurrence"] == 1
    bench.checks = [CheckView(name="dmesg", verdict=Verdict.PASS)]
    await bench.settle()
    assert bench.writes == 3
    assert "failing" not in bench.server.raw
    assert "findings" not in bench.server.raw["checks"][0]


async def test_counts_alone_are_written_every_ten_minutes_and_only_while_something_is_wrong(bench: Bench):
    bench.fail()
    await bench.settle()
    bench.fail(count=5)
    assert await bench.settle() == RIDE_ALONG_S
    bench.now += RIDE_ALONG_S - 1
    assert await bench.settle() == 1
    assert bench.writes == 2
    bench.now += 1
    await bench.settle()
    assert bench.writes == 3
    assert bench.server.raw["checks"][0]["findings"][0]["count"] == 5


async def test_times_alone_are_never_written_while_all_is_well(bench: Bench):
    bench.checks = [CheckView(name="dmesg", verdict=Verdict.PASS, last_change=99.0)]
    bench.now += 2 * RIDE_ALONG_S
    assert await bench.settle() is None
    assert bench.writes == 1


async def test_nothing_is_written_before_there_is_a_verdict():
    bench = Bench()
    bench.silent = True
    bench.see()
    assert await bench.settle() is None
    assert bench.writes == 0
    assert bench.publisher.unpublished_since is None


async def test_without_an_object_it_waits_and_knows_since_when():
    bench = Bench()
    bench.publisher.notify_change()
    assert await bench.settle() is None
    bench.now += 90
    await bench.settle()
    assert bench.publisher.unpublished_since == 1_000.0
    bench.see()
    await bench.settle()
    assert bench.publisher.unpublished_since is None


async def test_a_restart_within_the_same_pod_writes_nothing(bench: Bench):
    again = Bench()
    again.server = bench.server
    again.publisher._client = bench.server
    again.see()
    await again.settle()
    assert bench.writes == 1


@pytest.mark.parametrize(
    "error",
    [
        Unreachable("refused", "/x"),
        TooManyRequests(429, "TooManyRequests", "slow down", "/x", 7.0),
        ApiError(500, "InternalError", "etcd", "/x"),
    ],
)
async def test_an_outage_of_minutes_loses_nothing_and_ends_with_the_newest_state(bench: Bench, error: ApiError):
    bench.server.failures = [error] * 30
    bench.fail()
    bench.publisher.notify_change()
    waits = []
    while bench.server.failures:
        wait = await bench.settle()
        assert wait is not None
        waits.append(wait)
        bench.now += wait
    assert max(waits) <= (1.5 * AWAY_S if isinstance(error, Unreachable) else 15)
    if isinstance(error, TooManyRequests):
        assert min(waits) >= 7.0, "the server's word is heeded"
    assert bench.publisher.error
    bench.fail(count=9)
    bench.now += 60
    await bench.settle()
    assert bench.writes == 2, "many tries, one write"
    assert bench.server.raw["checks"][0]["findings"][0]["count"] == 9
    assert bench.publisher.error == ""


async def test_a_write_whose_answer_was_lost_is_not_repeated(bench: Bench):
    bench.server.lose_answer = True
    bench.fail()
    await bench.settle()
    bench.see()
    bench.now += 60
    await bench.settle()
    assert bench.writes == 2


async def test_a_version_that_has_moved_on_is_looked_at_again_at_once(bench: Bench):
    bench.server.version += 5
    bench.fail()
    await bench.settle()
    assert bench.writes == 2
    assert bench.server.raw["verdict"] == "FAIL"


async def test_an_edit_by_hand_is_healed_at_once_and_a_fight_is_no_storm(bench: Bench):
    bench.see(bench.server.edit(verdict="FAIL", due=["nonsense"]))
    await bench.settle()
    assert bench.writes == 2
    assert bench.server.raw["verdict"] == "PASS"
    assert "due" not in bench.server.raw
    began = bench.now
    while bench.now < began + 600:
        bench.see(bench.server.edit(verdict="FAIL"))
        wait = await bench.settle()
        bench.now += min(wait or 1.0, 1.0)
    assert bench.writes < 30


async def test_only_what_others_wrote_is_shown_to_the_agent_to_disown(bench: Bench):
    bench.fail()
    await bench.settle()
    assert [verdict for verdict, published in bench.foreign if published] == []
    bench.see(bench.server.edit(verdict="UNKNOWN"))
    await bench.settle()
    assert ("UNKNOWN", True) in bench.foreign


async def test_an_edit_never_delays_a_new_fault(bench: Bench):
    for _ in range(5):
        bench.see(bench.server.edit(verdict="WARN"))
        await bench.settle()
    bench.fail()
    before = bench.writes
    await bench.settle()
    assert bench.writes == before + 1


async def test_a_server_that_keeps_less_than_was_sent_is_not_asked_forever(bench: Bench, caplog):
    bench.server.prune = ("bootID",)
    bench.fail()
    await bench.settle()
    for _ in range(20):
        bench.now += 100
        await bench.settle()
    assert bench.writes <= 3
    assert "ERROR" in {record.levelname for record in caplog.records}


async def test_findings_that_flap_are_written_no_faster_than_the_pace(bench: Bench):
    began = bench.now
    while bench.now < began + 60:
        if bench.server.raw["verdict"] == "PASS":
            bench.fail()
        else:
            bench.checks = [CheckView(name="dmesg", verdict=Verdict.PASS)]
        await bench.settle()
        bench.now += 0.01
    assert bench.writes <= 72


async def test_a_deleted_object_is_waited_for_and_filled_again(bench: Bench):
    bench.server.gone = True
    bench.fail()
    assert await bench.settle() is None
    assert bench.publisher.observed is None
    bench.server.gone = False
    bench.server.make_anew()
    bench.see()
    await bench.settle()
    assert bench.server.raw["verdict"] == "FAIL"


async def test_an_object_that_a_starting_server_denies_is_written_again(bench: Bench):
    """No watch tells of an object that was there all the time."""
    bench.server.failures = [NotFound(404, "NotFound", "gone", "/x")]
    bench.fail()
    await bench.settle()
    assert bench.server.raw["verdict"] == "FAIL"


async def test_no_word_of_a_watch_shortens_the_pause_after_a_failure(bench: Bench, loop_time: LoopTime):
    bench.server.failures = [TooManyRequests(429, "TooManyRequests", "slow down", "/x", 600.0)]
    bench.fail()
    running = asyncio.create_task(bench.publisher.run())
    await loop_time.passes(0.0)
    for _ in range(10):
        await loop_time.passes(59.0)
        bench.publisher.notify_progress()
        bench.see()
        assert bench.writes == 1
    await loop_time.passes(59.0)
    assert bench.server.raw["verdict"] == "FAIL"
    running.cancel()


@pytest.mark.parametrize("conflict", [False, True], ids=["answer of a write", "answer of a read"])
async def test_an_object_made_anew_before_an_answer_of_the_old_one_is_read_is_filled(bench: Bench, conflict: bool):
    def replaced() -> None:
        bench.server.make_anew()
        bench.publisher.observe("n1", None, None)
        bench.see()

    bench.server.before_answer = replaced
    if conflict:
        bench.server.edit(message="somebody's")
    bench.fail()
    await bench.settle()
    assert bench.server.raw["verdict"] == "FAIL"


async def test_an_unreadable_object_is_written_anew(bench: Bench):
    bench.publisher.observe_undecodable("n1", b"{}", "Expected `str`, got `int`")
    await bench.settle()
    assert bench.writes == 2


async def test_a_newcomer_writes_its_claim_and_nothing_else_until_the_grace_is_over():
    bench = Bench()
    bench.server.edit(verdict="FAIL", agent={"podUID": "other", "version": "0"}, observedAt="t1")
    bench.see()
    wait = await bench.settle()
    assert wait == 5
    assert bench.server.patches == [{"agent": {"podUID": "pod-1", "version": "1"}}]
    bench.see(bench.server.edit(agent={"podUID": "other"}, observedAt="t2"))
    await bench.settle()
    assert bench.publisher.claim.holder == "other"
    assert bench.writes == 1
    bench.see(bench.server.edit(agent={"podUID": ""}))
    await bench.settle()
    assert bench.server.raw["verdict"] == "PASS"
    assert bench.publisher.claim.holder == ""


async def test_a_holder_answers_a_claim_at_once_however_often(bench: Bench):
    for n in range(5):
        bench.see(bench.server.edit(agent={"podUID": f"rival-{n}"}))
        await bench.settle()
        assert bench.server.raw["agent"]["podUID"] == "pod-1"


async def test_a_clean_stop_releases_the_node_and_writes_what_was_pending(bench: Bench):
    bench.fail()
    await bench.publisher.release()
    assert "podUID" not in bench.server.raw["agent"]
    assert bench.server.raw["verdict"] == "FAIL"


async def test_a_refused_agent_gives_nothing_back():
    bench = Bench()
    bench.server.edit(agent={"podUID": "other"}, observedAt="t1")
    bench.see()
    await bench.publisher.release()
    assert bench.writes == 0


async def test_a_stale_event_does_not_undo_what_is_known(bench: Bench):
    old = msgspec.structs.replace(bench.server.health(), metadata=Metadata(name="n1", uid="u1", resource_version="1"))
    bench.see(msgspec.structs.replace(old, status=NodeHealthStatus()))
    await bench.settle()
    assert bench.writes == 1
