"""Events on the user's job: each once, and not too many."""

import asyncio
import json
from collections.abc import AsyncIterator

import pytest
from tests.kube.conftest import Reply
from tests.operator.operator_bench import NS, OperatorBench, a_job, bench_around, failure, until

from muster_operator.act.event_recorder import BURST, MESSAGE_LIMIT, REFILL_S, JobEventRecorder
from muster_operator.job.snapshot import RecordEvent

EVENTS = f"/api/v1/namespaces/{NS}/events"


class RecorderBench:
    def __init__(self, bench: OperatorBench) -> None:
        self.bench = bench
        self.outcomes: list[str] = []
        self.recorder = JobEventRecorder(bench.client, clock=bench.clock, now=lambda: 1.7e9, note=self.outcomes.append)

    @property
    def sent(self) -> list[dict[str, object]]:
        return [json.loads(asked.body) for asked in self.bench.written()]


@pytest.fixture
async def events() -> AsyncIterator[RecorderBench]:
    async with bench_around() as bench:
        bench.api.on(
            "POST", EVENTS, Reply(201, {"metadata": {"name": "e"}, "involvedObject": {"kind": "K", "name": "n"}})
        )
        made = RecorderBench(bench)
        running = asyncio.create_task(made.recorder.run())
        yield made
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_an_event_refers_to_the_job_and_is_recorded_once(events: RecorderBench) -> None:
    job = a_job()
    for _ in range(3):
        events.recorder.record(job, RecordEvent("Warning", "ErrResourceExists", "Pod a exists"))
    events.recorder.record(job, RecordEvent("Warning", "ErrResourceExists", "Pod b exists"))
    await until(lambda: len(events.outcomes) == 2)
    first, second = events.sent
    assert first["involvedObject"] == {
        "kind": "IPUJob", "name": "train", "namespace": NS, "uid": "u1", "apiVersion": "graphcore.ai/v1alpha1",
    }  # fmt: skip
    assert (first["type"], first["reason"], first["message"]) == ("Warning", "ErrResourceExists", "Pod a exists")
    assert first["metadata"]["name"] != second["metadata"]["name"]  # type: ignore[index]
    assert first["source"] == {"component": "muster-operator"}


async def test_an_event_of_another_leader_is_known(events: RecorderBench) -> None:
    events.bench.api.on("POST", EVENTS, failure(409, "AlreadyExists"))
    events.recorder.record(a_job(), RecordEvent("Normal", "R", "m"))
    await until(lambda: events.outcomes == ["known"])


async def test_one_that_is_refused_is_let_go(events: RecorderBench) -> None:
    events.bench.api.on("POST", EVENTS, failure(403, "Forbidden", "the namespace is being terminated"))
    events.recorder.record(a_job(), RecordEvent("Normal", "R", "m"))
    await until(lambda: events.outcomes == ["refused"])


async def test_a_failed_event_is_recorded_again(events: RecorderBench) -> None:
    events.bench.api.on("POST", EVENTS, failure(500, "InternalError"), Reply(201, {
        "metadata": {"name": "e"}, "involvedObject": {"kind": "K", "name": "n"},
    }))  # fmt: skip
    events.recorder.record(a_job(), RecordEvent("Normal", "R", "m"))
    await until(lambda: events.outcomes == ["written"])


async def test_the_events_of_a_job_are_rate_limited(events: RecorderBench) -> None:
    for number in range(3 * BURST):
        events.recorder.record(a_job(), RecordEvent("Normal", "R", f"{number}"))
    assert events.outcomes.count("left out") == 2 * BURST
    events.recorder.record(a_job(uid="u2"), RecordEvent("Normal", "R", "another job's"))
    await until(lambda: events.outcomes.count("written") == BURST + 1)
    events.bench.now += REFILL_S
    events.recorder.record(a_job(), RecordEvent("Normal", "R", "later"))
    events.recorder.record(a_job(), RecordEvent("Normal", "R", "too soon"))
    await until(lambda: events.outcomes.count("written") == BURST + 2)


async def test_a_message_is_cut(events: RecorderBench) -> None:
    events.recorder.record(a_job(), RecordEvent("Normal", "R", "x" * 5000))
    await until(lambda: events.outcomes == ["written"])
    assert len(str(events.sent[0]["message"])) == MESSAGE_LIMIT
