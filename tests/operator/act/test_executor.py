"""What a plan asks for, done; what is refused is remembered, and asked for again when it is time."""

import asyncio
import json
from collections.abc import AsyncIterator

import httpx2
import msgspec
import pytest
from tests.kube.conftest import Reply
from tests.operator.operator_bench import (
    JOBS,
    PODS,
    OperatorBench,
    a_job,
    bench_around,
    failure,
    job_object,
    pod_object,
)
from tests.wording.facts import missing_facts

from muster_kube.api.errors import Conflict, NotFound, Unreachable
from muster_operator.act.partition_requests import AT_ONCE
from muster_operator.act.refusal_cache import FREEING, TAKING
from muster_operator.job.names import OWNED_SELECTOR, partition
from muster_operator.job.partition_api import PartitionEntry, PartitionRefusal
from muster_operator.job.snapshot import (
    Action,
    ActionResult,
    AddFinalizer,
    CreateObject,
    DeleteJob,
    DeletePod,
    FreePartition,
    PatchObject,
    RemoveFinalizer,
    TakePartitions,
)
from muster_operator.job.types import FINALIZER

POD = CreateObject("Pod", "train-worker-0", {"metadata": {"name": "train-worker-0"}})
ENTRY = PartitionEntry(job="u1", namespace="ns", name="train", size=4, gcds=2, state="active")
FIRST, SECOND = (f"/partitions/{partition('ns', 'train', number)}" for number in (0, 1))
NO_ROOM = PartitionRefusal(why="NoRoom", message="all are taken")


@pytest.fixture
async def bench() -> AsyncIterator[OperatorBench]:
    async with bench_around() as made:
        yield made


def take(*instances: int, together: bool = False, attempt: int = 0) -> TakePartitions:
    return TakePartitions(instances, attempt=attempt, size=4, gcds=2, together=together)


async def test_an_object_is_made_by_one_call(bench: OperatorBench) -> None:
    bench.api.on("POST", PODS, Reply(201, pod_object("train-worker-0")))
    assert await bench.execute(a_job(), POD) is ActionResult.DONE
    assert [(asked.method, asked.path) for asked in bench.api.asked] == [("POST", PODS)]


async def test_an_existing_object_of_the_job_counts_as_created(bench: OperatorBench) -> None:
    bench.api.on("POST", PODS, failure(409, "AlreadyExists"))
    bench.api.on("GET", f"{PODS}/train-worker-0", Reply(200, pod_object("train-worker-0")))
    assert await bench.execute(a_job(), POD) is ActionResult.DONE
    assert bench.refusals.foreign("u1") == {}


@pytest.mark.parametrize(
    ("owners", "labels", "whose"),
    [
        ([], {}, "no owner"),
        ([{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "r", "controller": True}], {},
         "ReplicaSet web"),
        ([{"apiVersion": "graphcore.ai/v1alpha1", "kind": "IPUJob", "name": "train", "uid": "older",
           "controller": True}], {}, "IPUJob train"),
        (pod_object("x")["metadata"]["ownerReferences"], {"app": "x"}, OWNED_SELECTOR),
    ],
)  # fmt: skip
async def test_an_object_of_another_owner_is_left_alone_and_checked_later(
    bench: OperatorBench, owners: list[dict[str, object]], labels: dict[str, str], whose: str
) -> None:
    bench.api.on("POST", PODS, failure(409, "AlreadyExists"))
    found = pod_object("train-worker-0", ownerReferences=owners, labels=labels)
    bench.api.on("GET", f"{PODS}/train-worker-0", Reply(200, found))
    assert await bench.execute(a_job(), POD) is ActionResult.REFUSED
    [(key, said)] = bench.refusals.foreign("u1").items()
    assert key == ("Pod", "train-worker-0")
    assert whose in said
    asked = len(bench.api.asked)
    assert await bench.execute(a_job(), POD) is ActionResult.NOTHING
    assert len(bench.api.asked) == asked
    # when it is time it is only read, until it is gone
    bench.now += 60
    assert await bench.execute(a_job(), POD) is ActionResult.REFUSED
    assert bench.api.asked[-1].method == "GET"
    bench.now += 60
    bench.api.on("GET", f"{PODS}/train-worker-0", failure(404, "NotFound"))
    bench.api.on("POST", PODS, Reply(201, pod_object("train-worker-0")))
    assert await bench.execute(a_job(), POD) is ActionResult.DONE
    assert bench.refusals.foreign("u1") == {}


@pytest.mark.parametrize(("code", "reason"), [(403, "Forbidden"), (422, "Invalid")])
async def test_a_rejected_object_is_reported_and_retried_later(bench: OperatorBench, code: int, reason: str) -> None:
    bench.api.on("POST", PODS, failure(code, reason, "exceeded quota: gpus"))
    assert await bench.execute(a_job(), POD) is ActionResult.REFUSED
    [said] = bench.refusals.refused("u1").values()
    assert not missing_facts(said, "Pod train-worker-0", "exceeded quota: gpus")
    assert await bench.execute(a_job(), POD) is ActionResult.WAITS
    assert len(bench.written()) == 1
    again_s = bench.refusals.again_s("u1")
    assert again_s is not None
    assert 1.0 <= again_s <= 3.0
    bench.now += again_s
    bench.api.on("POST", PODS, Reply(201, pod_object("train-worker-0")))
    assert await bench.execute(a_job(), POD) is ActionResult.DONE
    assert bench.refusals.refused("u1") == {}
    assert bench.refusals.again_s("u1") is None


async def test_the_back_off_grows_to_a_minute(bench: OperatorBench) -> None:
    waits = []
    for _ in range(12):
        bench.refusals.note("u1", (TAKING, "p"), NO_ROOM)
        waits.append(bench.refusals.again_s("u1") or 0.0)
    assert waits[0] <= 3.0
    assert 30.0 <= waits[-1] <= 60.0


async def test_the_finaliser_is_put_on_and_taken_off_by_the_version_it_was_decided_on(bench: OperatorBench) -> None:
    bench.api.on("PATCH", f"{JOBS}/train", Reply(200, job_object()))
    other = job_object(finalizer=False)
    other["metadata"]["finalizers"] = ["their/own"]
    job = msgspec.json.decode(json.dumps(other), type=type(a_job()))
    assert await bench.execute(job, AddFinalizer()) is ActionResult.DONE
    assert await bench.execute(a_job(), AddFinalizer()) is ActionResult.NOTHING
    assert await bench.execute(a_job(), RemoveFinalizer()) is ActionResult.WAITS
    sent = [json.loads(asked.body)["metadata"] for asked in bench.written()]
    assert [each["finalizers"] for each in sent] == [["their/own", FINALIZER], []]
    assert all(each["resourceVersion"] == "5" and each["uid"] == "u1" for each in sent)


async def test_the_finaliser_is_taken_off_once_until_the_watch_tells_and_again_where_it_was_not(
    bench: OperatorBench,
) -> None:
    bench.api.on("PATCH", f"{JOBS}/train", failure(409, "Conflict"))
    with pytest.raises(Conflict):
        await bench.execute(a_job(), RemoveFinalizer())
    bench.api.on("PATCH", f"{JOBS}/train", Reply(200, job_object(finalizer=False)))
    for _ in range(3):
        assert await bench.execute(a_job(), RemoveFinalizer()) is ActionResult.WAITS
    assert len(bench.written()) == 2
    again_s = bench.refusals.again_s("u1")
    assert again_s is not None
    bench.now += again_s
    await bench.execute(a_job(), RemoveFinalizer())
    assert len(bench.written()) == 3


async def test_a_decision_on_the_past_ends_the_turn(bench: OperatorBench) -> None:
    bench.api.on("PATCH", f"{JOBS}/train", failure(409, "Conflict"))
    with pytest.raises(Conflict):
        await bench.execute(a_job(finalizer=False), AddFinalizer())


async def test_a_pod_is_removed_by_its_uid(bench: OperatorBench) -> None:
    bench.api.on("DELETE", f"{PODS}/w", Reply(200, pod_object("w", deletionTimestamp="2026-01-01T00:00:00Z")))
    await bench.execute(a_job(), DeletePod("w", "pod-w", grace_s=5))
    assert json.loads(bench.written()[0].body) == {"preconditions": {"uid": "pod-w"}, "gracePeriodSeconds": 5}
    bench.api.on("DELETE", f"{PODS}/w", failure(404, "NotFound"))
    assert await bench.execute(a_job(), DeletePod("w", "pod-w")) is ActionResult.NOTHING


async def test_a_pod_that_is_gone_at_once_is_left_to_the_watch(bench: OperatorBench) -> None:
    bench.api.on("DELETE", f"{PODS}/w", Reply(200, {"kind": "Status", "status": "Success"}))
    assert await bench.execute(a_job(), DeletePod("w", "pod-w")) is ActionResult.NOTHING
    assert [asked.method for asked in bench.written()] == ["DELETE"]


@pytest.mark.parametrize(("path", "action"), [(f"{PODS}/w", DeletePod("w", "pod-w")), (f"{JOBS}/train", DeleteJob())])
async def test_a_conflict_does_not_count_as_deleted(bench: OperatorBench, path: str, action: Action) -> None:
    """The object may be as it was, and then no event would ever cause another decision."""
    bench.api.on("DELETE", path, failure(409, "Conflict"))
    with pytest.raises(Conflict):
        await bench.execute(a_job(), action)


@pytest.mark.parametrize(("path", "action"), [(f"{PODS}/w", DeletePod("w", "pod-w")), (f"{JOBS}/train", DeleteJob())])
async def test_a_deletion_is_tried_again_if_the_server_does_not_serve_the_kind(
    bench: OperatorBench, path: str, action: Action
) -> None:
    """As while it starts: then its 404 is no Status, and the object may exist."""
    bench.api.on("DELETE", path, Reply(404, b"404 page not found\n"))
    with pytest.raises(NotFound):
        await bench.execute(a_job(), action)
    bench.api.on("DELETE", path, failure(404, "NotFound"))
    assert await bench.execute(a_job(), action) in (ActionResult.NOTHING, ActionResult.WAITS)


async def test_small_objects_are_changed(bench: OperatorBench) -> None:
    path = "/api/v1/namespaces/ns/configmaps/train-config"
    bench.api.on("PATCH", path, Reply(200, pod_object("train-config")))
    patch = PatchObject("ConfigMap", "train-config", {"data": {}})
    assert await bench.execute(a_job(), patch) is ActionResult.DONE
    assert [asked.method for asked in bench.written()] == ["PATCH"]


async def test_a_server_that_is_away_ends_the_turn_and_is_no_refusal(bench: OperatorBench) -> None:
    await bench.api.stop()
    with pytest.raises(Unreachable):
        await bench.execute(a_job(), POD)
    assert bench.refusals.refused("u1") == {}


async def test_partitions_are_taken_and_count_at_once(bench: OperatorBench) -> None:
    bench.played.on("PUT", FIRST, 200, ENTRY)
    bench.played.on("PUT", SECOND, 202, msgspec.structs.replace(ENTRY, state="creating"))
    assert await bench.execute(a_job(), take(0, 1)) is ActionResult.DONE
    states = {entry.instance: entry.state for entry in bench.cluster.tracker.of_job("u1").values()}
    assert states == {0: "active", 1: "creating"}


async def test_without_room_no_further_partition_is_requested_and_taken_ones_are_kept(bench: OperatorBench) -> None:
    bench.played.on("PUT", FIRST, 200, ENTRY)
    bench.played.on("PUT", SECOND, 409, NO_ROOM)
    assert await bench.execute(a_job(), take(0, 1, 2)) is ActionResult.REFUSED
    assert bench.played.asked == [("PUT", FIRST), ("PUT", SECOND)]
    refused = bench.refusals.refusals("u1", TAKING)
    assert set(refused) == {partition("ns", "train", number) for number in (1, 2)}
    assert len(bench.cluster.tracker.of_job("u1")) == 1
    assert await bench.execute(a_job(), take(1, 2)) is ActionResult.WAITS
    bench.refusals.room_came("u1")
    assert await bench.execute(a_job(), take(1, 2)) is ActionResult.REFUSED
    assert len(bench.played.asked) == 3


async def test_a_token_that_the_proxy_does_not_accept_is_sent_once_and_not_for_each_instance(
    bench: OperatorBench,
) -> None:
    bench.played.on("PUT", FIRST, 401, PartitionRefusal(why="Denied", message="this token is not accepted"))
    assert await bench.execute(a_job(), take(0, 1, 2)) is ActionResult.REFUSED
    assert bench.played.asked == [("PUT", FIRST)]
    assert {refusal.why for refusal in bench.refusals.refusals("u1", TAKING).values()} == {"Denied"}
    assert await bench.execute(a_job(), take(0, 1, 2)) is ActionResult.WAITS
    assert len(bench.played.asked) == 1


async def test_of_many_partitions_some_are_taken_before_the_job_is_looked_at_again(bench: OperatorBench) -> None:
    """Each may take V-IPU seconds: the pods of the first need not wait for the last, nor does a deletion."""
    for number in range(AT_ONCE + 1):
        bench.played.on("PUT", f"/partitions/{partition('ns', 'train', number)}", 200, ENTRY)
    assert await bench.execute(a_job(), take(*range(AT_ONCE + 1))) is ActionResult.DONE
    assert len(bench.played.asked) == AT_ONCE
    bench.played.on("POST", "/query", 200, {"available": True, "numOfPartitions": AT_ONCE + 1})
    assert await bench.execute(a_job(), take(*range(AT_ONCE + 1), together=True)) is ActionResult.DONE
    assert len(bench.played.asked) == AT_ONCE + 1 + AT_ONCE + 1, "a gang is not taken in parts"


@pytest.mark.parametrize("meanwhile", ["deleted", "suspended"])
async def test_a_gang_that_is_given_up_meanwhile_takes_no_further_partition(
    bench: OperatorBench, meanwhile: str
) -> None:
    """A slow V-IPU may take seconds for each."""
    now = job_object()
    if meanwhile == "deleted":
        now["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    else:
        now["spec"]["suspend"] = True
    bench.lists(ipujobs=[now])
    watching = asyncio.create_task(bench.cluster.watch())
    await bench.cluster.wait_synced()
    bench.played.on("POST", "/query", 200, {"available": True, "numOfPartitions": 64})
    bench.played.on("PUT", FIRST, 202, msgspec.structs.replace(ENTRY, state="creating"))
    assert await bench.execute(a_job(), take(*range(64), together=True)) is ActionResult.REFUSED
    assert bench.played.asked == [("POST", "/query"), ("PUT", FIRST)]
    assert len(bench.cluster.tracker.of_job("u1")) == 1, "it is known, so that it is given back"
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)


async def test_a_gang_is_asked_room_for_first(bench: OperatorBench) -> None:
    bench.played.on("POST", "/query", 200, {"available": True, "numOfPartitions": 1, "message": "fragmented"})
    assert await bench.execute(a_job(), take(0, 1, together=True)) is ActionResult.REFUSED
    assert bench.played.asked == [("POST", "/query")]
    [said] = {refusal.message for refusal in bench.refusals.refusals("u1", TAKING).values()}
    assert not missing_facts(said, "1 of 2", "4 IPUs", "fragmented")


async def test_42_a_restarting_gang_needs_room_only_for_missing_partitions(
    bench: OperatorBench,
) -> None:
    bench.cluster.tracker.note_answer(partition("ns", "train", 0), ENTRY)
    bench.played.on("POST", "/query", 200, {"available": True, "numOfPartitions": 0})
    bench.played.on("PUT", FIRST, 202, msgspec.structs.replace(ENTRY, state="creating"))
    assert await bench.execute(a_job(), take(0, together=True, attempt=1)) is ActionResult.DONE
    assert bench.played.asked == [("PUT", FIRST)]
    assert await bench.execute(a_job(), take(0, 1, together=True, attempt=2)) is ActionResult.REFUSED
    [said] = {refusal.message for refusal in bench.refusals.refusals("u1", TAKING).values()}
    assert not missing_facts(said, "0 of 1", "4 IPUs")


async def test_a_gang_that_gets_half_gives_it_back(bench: OperatorBench) -> None:
    bench.played.on("POST", "/query", 200, {"available": True, "numOfPartitions": 2})
    bench.played.on("PUT", FIRST, 200, ENTRY)
    bench.played.on("PUT", SECOND, 409, NO_ROOM)
    bench.played.on("DELETE", FIRST, 200, {})
    assert await bench.execute(a_job(), take(0, 1, together=True)) is ActionResult.REFUSED
    assert bench.played.asked[-1] == ("DELETE", FIRST)
    assert bench.cluster.tracker.of_job("u1") == {}
    assert len(bench.refusals.refusals("u1", TAKING)) == 2


class Narrow:
    """A V-IPU with room for three partitions, which takes its time with each."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []
        self.held: dict[str, PartitionEntry] = {}

    async def handle(self, request: httpx2.Request) -> httpx2.Response:
        self.asked.append((request.method, request.url.path))
        for _ in range(10):
            await asyncio.sleep(0)
        if request.method == "POST":
            return httpx2.Response(200, json={"available": True, "numOfPartitions": 3 - len(self.held)})
        if request.method == "DELETE":
            del self.held[request.url.path]
            return httpx2.Response(200, json={})
        if len(self.held) == 3:
            return httpx2.Response(409, content=msgspec.json.encode(NO_ROOM))
        wish = msgspec.json.decode(request.content)
        made = msgspec.structs.replace(ENTRY, job=wish["job"], name=wish["name"], instance=wish["instance"])
        self.held[request.url.path] = made
        return httpx2.Response(200, content=msgspec.json.encode(made))


async def test_49_of_two_gangs_that_begin_at_once_one_gets_all_it_wants_and_the_other_takes_nothing() -> None:
    vipu = Narrow()
    async with bench_around(answered_by=vipu.handle) as bench:
        one, other = a_job("one", uid="u1"), a_job("other", uid="u2")
        wish = take(0, 1, together=True)
        assert await asyncio.gather(bench.execute(one, wish), bench.execute(other, wish)) == [
            ActionResult.DONE,
            ActionResult.REFUSED,
        ]
        assert {entry.job for entry in vipu.held.values()} == {"u1"}
        assert not [path for method, path in vipu.asked if method == "DELETE" or "other" in path]
        [said] = {refusal.message for refusal in bench.refusals.refusals("u2", TAKING).values()}
        assert not missing_facts(said, "1 of 2", "4 IPUs")
        bench.now += 60
        assert await bench.execute(other, take(0, together=True)) is ActionResult.DONE, "nothing is reserved any more"


async def test_freeing_is_done_when_it_is_gone_waited_for_when_under_way_and_tried_again_when_refused(
    bench: OperatorBench,
) -> None:
    name = partition("ns", "train", 0)
    free = FreePartition(name)
    bench.cluster.tracker.note_answer(name, ENTRY)
    bench.played.on("DELETE", FIRST, 503, PartitionRefusal(why="Unreachable", message="V-IPU is away"))
    assert await bench.execute(a_job(), free) is ActionResult.REFUSED
    assert bench.refusals.refusals("u1", FREEING)[name].why == "Unreachable"
    assert await bench.execute(a_job(), free) is ActionResult.WAITS
    bench.now += 60
    bench.cluster.tracker.note_answer(name, ENTRY)
    bench.played.on("DELETE", FIRST, 202, {})
    assert await bench.execute(a_job(), free) is ActionResult.REFUSED
    assert bench.cluster.tracker.of_job("u1")[name].state == "deleting"
    assert bench.refusals.refusals("u1", FREEING) == {}
    bench.played.on("DELETE", FIRST, 200, {})
    assert await bench.execute(a_job(), free) is ActionResult.DONE
    assert bench.cluster.tracker.of_job("u1") == {}
    assert await bench.execute(a_job(), free) is ActionResult.NOTHING


async def test_a_partition_of_another_job_counts_as_released(bench: OperatorBench) -> None:
    name = partition("ns", "train", 0)
    bench.cluster.tracker.note_answer(name, ENTRY)
    bench.played.on("DELETE", FIRST, 409, PartitionRefusal(why="NotOurs", message="of u2"))
    assert await bench.execute(a_job(), FreePartition(name)) is ActionResult.DONE
    assert bench.refusals.refusals("u1", FREEING) == {}


async def test_a_partition_that_its_owner_could_not_use_is_not_followed_by_another_at_once(
    bench: OperatorBench,
) -> None:
    bench.played.on("DELETE", FIRST, 202, ENTRY)
    bench.played.on("POST", "/query", 200, {"available": True, "numOfPartitions": 1})
    bench.played.on("PUT", FIRST, 200, ENTRY)
    free = FreePartition(partition("ns", "train", 0), unsuitable=True)
    await bench.execute(a_job(), free)
    bench.refusals.room_came("u1")  # its own partition makes room
    assert await bench.execute(a_job(), take(0, together=True)) is ActionResult.WAITS
    assert bench.refusals.again_s("u1") is not None
