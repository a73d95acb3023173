"""Events on the user's job: each once, and not too many."""

import asyncio
import json
from collections.abc import AsyncIterator

import pytest
from tests.kube.conftest import Reply
from tests.operator.edge.operator_world import NS, Bench, a_job, bench_around, failure, until

from muster_operator.act.event_recorder import BURST, MESSAGE_LIMIT, REFILL_S, JobEventRecorder
from muster_operator.job.snapshot import RecordEvent

EVENTS = f"/api/v1/namespaces/{NS}/events"


class Told:
    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.outcomes: list[str] = []
        self.telling = JobEventRecorder(bench.client, clock=bench.clock, now=lambda: 1.7e9, note=self.outcomes.append)

    @property
    def sent(self) -> list[dict[str, object]]:
        return [json.loads(asked.body) for asked in self.bench.written()]


@pytest.fixture
async def told() -> AsyncIterator[Told]:
    async with bench_around() as bench:
        bench.api.on(
            "POST", EVENTS, Reply(201, {"metadata": {"name": "e"}, "involvedObject": {"kind": "K", "name": "n"}})
        )
        made = Told(bench)
        running = asyncio.create_task(made.telling.run())
        yield made
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_an_event_is_about_the_job_in_its_namespace_and_told_once(told: Told) -> None:
    job = a_job()
    for _ in range(3):
        told.telling.tell(job, RecordEvent("Warning", "ErrResourceExists", "Pod a exists"))
    told.telling.tell(job, RecordEvent("Warning", "ErrResourceExists", "Pod b exists"))
    await until(lambda: len(told.outcomes) == 2)
    first, second = told.sent
    assert first["involvedObject"] == {
        "kind": "IPUJob", "name": "train", "namespace": NS, "uid": "u1", "apiVersion": "graphcore.ai/v1alpha1",
    }  # fmt: skip
    assert (first["type"], first["reason"], first["message"]) == ("Warning", "ErrResourceExists", "Pod a exists")
    assert first["metadata"]["name"] != second["metadata"]["name"]  # type: ignore[index]
    assert first["source"] == {"component": "muster-operator"}


async def test_one_that_another_leader_has_told_is_known(told: Told) -> None:
    told.bench.api.on("POST", EVENTS, failure(409, "AlreadyExists"))
    told.telling.tell(a_job(), RecordEvent("Normal", "R", "m"))
    await until(lambda: told.outcomes == ["known"])


async def test_one_that_is_refused_is_let_go(told: Told) -> None:
    told.bench.api.on("POST", EVENTS, failure(403, "Forbidden", "the namespace is being terminated"))
    told.telling.tell(a_job(), RecordEvent("Normal", "R", "m"))
    await until(lambda: told.outcomes == ["refused"])


async def test_one_that_did_not_arrive_is_told_again(told: Told) -> None:
    told.bench.api.on("POST", EVENTS, failure(500, "InternalError"), Reply(201, {
        "metadata": {"name": "e"}, "involvedObject": {"kind": "K", "name": "n"},
    }))  # fmt: skip
    told.telling.tell(a_job(), RecordEvent("Normal", "R", "m"))
    await until(lambda: told.outcomes == ["written"])


async def test_a_job_that_goes_on_about_ever_new_things_is_heard_once_in_a_while(told: Told) -> None:
    for number in range(3 * BURST):
        told.telling.tell(a_job(), RecordEvent("Normal", "R", f"{number}"))
    assert told.outcomes.count("left out") == 2 * BURST
    told.telling.tell(a_job(uid="u2"), RecordEvent("Normal", "R", "another job's"))
    await until(lambda: told.outcomes.count("written") == BURST + 1)
    told.bench.now += REFILL_S
    told.telling.tell(a_job(), RecordEvent("Normal", "R", "later"))
    told.telling.tell(a_job(), RecordEvent("Normal", "R", "too soon"))
    await until(lambda: told.outcomes.count("written") == BURST + 2)


async def test_a_message_is_cut(told: Told) -> None:
    told.telling.tell(a_job(), RecordEvent("Normal", "R", "x" * 5000))
    await until(lambda: told.outcomes == ["written"])
    assert len(str(told.sent[0]["message"])) == MESSAGE_LIMIT
