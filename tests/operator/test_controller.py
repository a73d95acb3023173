"""Turns: decisions (scripted here) until nothing is left to do, the status once, and nobody woken for nothing."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
from tests.kube.conftest import Asked, Drop, Reply
from tests.operator.operator_bench import JOBS, NS, Object, OperatorBench, bench_around, failure, job_object, until
from tests.wording.facts import missing_facts

from muster_operator.act.status_writer import COUNTS_S, LINE_S, LINES
from muster_operator.controller import REFUSED_LINE, JobPlanner, Operator, OperatorTiming, WriteAccess
from muster_operator.job.partition_api import PartitionEntry
from muster_operator.job.snapshot import AddFinalizer, CreateObject, JobPlan, JobSetup, RecordEvent, Snapshot
from muster_operator.job.status import has_condition
from muster_operator.job.status_types import IPUJobCondition, IPUJobStatus, WorkersStatus
from muster_operator.job.types import IPUJob, decode_job
from muster_operator.metrics import OperatorMetrics
from muster_operator.observe.cluster import WatchScope
from muster_operator.observe.tracker_reader import RECEIVED_S

STATUS = f"{JOBS}/train/status"
EVENTS = f"/api/v1/namespaces/{NS}/events"
Decide = Callable[[IPUJob, Snapshot], JobPlan]


def status(**fields: Any) -> IPUJobStatus:
    pending = IPUJobCondition(type="Pending", status="True", reason="IPUJobPending")
    return msgspec.structs.replace(IPUJobStatus(conditions=(pending,), observed_generation=1), **fields)


class StoredJob:
    """The job as the scripted API server has it: patches are merged, versions count up."""

    def __init__(self, job: Object) -> None:
        self.job = job

    def patch(self, asked: Asked) -> Reply:
        body = json.loads(asked.body)
        wanted, has = body["metadata"].get("resourceVersion"), self.job["metadata"]["resourceVersion"]
        if wanted not in (None, has):
            return failure(409, "Conflict")
        self.job = merged(self.job, body)
        self.job["metadata"]["resourceVersion"] = str(int(has) + 10)
        return Reply(200, self.job)


def merged(into: Object, patch: Object) -> Object:
    found = dict(into)
    for key, value in patch.items():
        if value is None:
            found.pop(key, None)
        else:
            found[key] = merged(found.get(key) or {}, value) if isinstance(value, dict) else value
    return found


class LeadingOperator:
    def __init__(self, bench: OperatorBench, decide: Decide, job: Object, looks: Sequence[str]) -> None:
        self.bench = bench
        self.turns = 0
        self.metrics = OperatorMetrics()
        self.stored = StoredJob(job)
        self.rules = looks

        def counted(job: IPUJob, seen: Snapshot, _: JobSetup) -> JobPlan:
            self.turns += 1
            return decide(job, seen)

        self.operator = Operator(
            WriteAccess(bench.client, bench.proxy, bench.may_write),
            JobPlanner(counted, JobSetup(), self),
            WatchScope(tracker=("muster", "tracker")),
            self.metrics,
            OperatorTiming(lambda: 1.7e9, bench.clock),
        )

    def complete(self, job: IPUJob) -> IPUJob:
        return job

    def wrong(self, _job: IPUJob) -> Sequence[str]:
        return self.rules

    def sent(self, path: str) -> list[Object]:
        return [json.loads(asked.body) for asked in self.bench.written() if asked.path == path]

    def at_rest(self) -> bool:
        """Every key that was in line has been handled."""
        queue = self.operator._queue
        return self.turns > 0 and queue is not None and not len(queue) and not queue.in_hand


@asynccontextmanager
async def lead_operator(
    decide: Decide, job: Object | None = None, looks: Sequence[str] = (), pods: Sequence[Object] = ()
) -> AsyncIterator[LeadingOperator]:
    async with bench_around() as bench:
        there = job or job_object(observedGeneration=1)
        bench.lists(ipujobs=[there], pods=[*pods])
        made = LeadingOperator(bench, decide, there, looks)
        bench.api.on("PATCH", STATUS, made.stored.patch)
        bench.api.on("PATCH", f"{JOBS}/train", made.stored.patch)
        event = {"metadata": {"name": "e"}, "involvedObject": {"kind": "K", "name": "n"}}
        bench.api.on("POST", EVENTS, Reply(201, event))
        tasks = [asyncio.create_task(made.operator.watch()), asyncio.create_task(made.operator.lead())]
        try:
            yield made
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def test_the_status_is_written_once_with_the_version_it_was_decided_on_and_not_again() -> None:
    wanted = status(last_message="waits", desired_replicas=2)
    async with lead_operator(lambda *_: JobPlan(status=wanted)) as it:
        await until(lambda: it.sent(STATUS) and it.at_rest() and it.turns >= 2)
        [sent] = it.sent(STATUS)
        assert sent["metadata"] == {"uid": "u1", "resourceVersion": "5"}
        assert sent["status"]["lastMessage"] == "waits"
        assert it.bench.written() == [asked for asked in it.bench.written() if asked.path == STATUS]


async def test_the_first_status_is_written_before_any_action() -> None:
    def decide(job: IPUJob, _: Snapshot) -> JobPlan:
        done = CreateObject("ConfigMap", "train-config", {"metadata": {"name": "train-config"}})
        return JobPlan((done,), status(last_message="waits"))

    async with lead_operator(decide) as it:
        body = {"metadata": {"name": "train-config", "namespace": NS, "resourceVersion": "9"}}
        it.bench.api.on("POST", f"/api/v1/namespaces/{NS}/configmaps", Reply(201, body))
        await until(lambda: len(it.bench.written()) >= 2)
        assert [asked.path for asked in it.bench.written()][:2] == [STATUS, f"/api/v1/namespaces/{NS}/configmaps"]


async def test_the_end_of_a_job_is_written_before_the_cleanup() -> None:
    ended = IPUJobCondition(type="Complete", status="True", reason="IPUJobCompleted")
    before = job_object(observedGeneration=1, conditions=[{"type": "Pending", "status": "True"}])

    def decide(job: IPUJob, _: Snapshot) -> JobPlan:
        told = status(conditions=(*job.status.conditions[:1], ended), last_message="All instances done")
        return JobPlan((RecordEvent("Normal", "Over", "it is over"),), told)

    async with lead_operator(decide, before) as it:
        await until(lambda: it.sent(STATUS) and it.sent(EVENTS) and it.at_rest())
        text = it.metrics.registry.get_sample_value("muster_operator_jobs_succeeded_total")
        assert text == 1
        assert len(it.sent(STATUS)) == len(it.sent(EVENTS)) == 1


@pytest.mark.parametrize("arrives", [True, False])
async def test_the_end_of_a_job_is_counted_and_told_once_if_no_answer_came(arrives: bool) -> None:
    ended = IPUJobCondition(type="Complete", status="True", reason="IPUJobCompleted")
    before = job_object(observedGeneration=1, conditions=[{"type": "Pending", "status": "True"}])

    def decide(job: IPUJob, _: Snapshot) -> JobPlan:
        if has_condition(job.status, "Complete"):
            return JobPlan(status=job.status)
        over = RecordEvent("Normal", "Over", "it is over")
        return JobPlan((over,), status(conditions=(*job.status.conditions, ended)))

    async with lead_operator(decide, before) as it:
        lost = 0

        def patch(asked: Asked) -> Reply | Drop:
            nonlocal lost
            if lost:
                return it.stored.patch(asked)
            lost += 1
            if arrives:
                it.stored.patch(asked)
            return Drop()

        it.bench.api.on("PATCH", STATUS, patch)
        await until(lambda: lost)
        if arrives:
            assert not it.sent(EVENTS)
            it.operator.cluster.observe_job(decode_job(json.dumps(it.stored.job).encode()))
        await until(lambda: it.sent(EVENTS) and it.at_rest())
        assert it.metrics.registry.get_sample_value("muster_operator_jobs_succeeded_total") == 1
        assert len(it.sent(EVENTS)) == 1


async def test_adding_the_finalizer_ends_the_plan_and_counts_the_job() -> None:
    def decide(job: IPUJob, _: Snapshot) -> JobPlan:
        pod = CreateObject("Pod", "p", {"metadata": {"name": "p"}})
        return JobPlan(status=status()) if job.metadata.finalizers else JobPlan((AddFinalizer(), pod))

    async with lead_operator(decide, job_object(finalizer=False, observedGeneration=1)) as it:
        await until(lambda: it.sent(STATUS) and it.at_rest())
        assert [asked.path for asked in it.bench.written()] == [f"{JOBS}/train", STATUS]
        assert it.metrics.registry.get_sample_value("muster_operator_jobs_created_total") == 1


async def test_a_status_of_which_only_numbers_are_new_is_held_back_for_a_moment() -> None:
    numbers = iter(range(1, 100))

    def decide(job: IPUJob, _: Snapshot) -> JobPlan:
        return JobPlan(status=status(last_message="runs", workers_status=WorkersStatus(active=next(numbers))))

    async with lead_operator(decide) as it:
        await until(lambda: it.turns >= 3 and it.at_rest())
        assert len(it.sent(STATUS)) == 1
        it.bench.now += COUNTS_S
        it.operator._enqueue(f"{NS}/train")
        await until(lambda: len(it.sent(STATUS)) == 2)


async def test_a_line_that_is_another_at_each_look_is_written_a_few_times_and_then_once_in_a_while() -> None:
    looks = iter(range(1000))

    def decide(job: IPUJob, _: Snapshot) -> JobPlan:
        return JobPlan(status=status(last_message=f"look {next(looks)}"))

    async with lead_operator(decide) as it:
        for _ in range(3 * LINES):
            turns = it.turns
            it.operator._enqueue(f"{NS}/train")
            await until(lambda turns=turns: it.turns > turns and it.at_rest())  # type: ignore[misc]
        assert len(it.sent(STATUS)) == 1 + LINES  # the first says more than its line
        it.bench.now += LINE_S
        it.operator._enqueue(f"{NS}/train")
        await until(lambda: len(it.sent(STATUS)) == 2 + LINES)


async def test_a_count_of_zero_is_removed() -> None:
    had: dict[str, Any] = {"workersStatus": {"active": 3}, "lastMessage": "x", "completionTime": "2026-01-01T00:00:00Z"}
    before = job_object(observedGeneration=1, conditions=[{"type": "Pending", "status": "True"}], **had)
    async with lead_operator(lambda *_: JobPlan(status=status(last_message="y")), before) as it:
        await until(lambda: it.sent(STATUS))
        [sent] = it.sent(STATUS)
        assert sent["status"]["workersStatus"] == {"active": None, "succeeded": None, "failed": None}
        assert sent["status"]["completionTime"] is None
        assert sent["status"]["selector"] is None


async def test_a_rejected_object_becomes_the_last_message() -> None:
    def decide(_job: IPUJob, _: Snapshot) -> JobPlan:
        return JobPlan((CreateObject("Pod", "p", {"metadata": {"name": "p"}}),), status(last_message="runs"))

    before = job_object(observedGeneration=1, conditions=[{"type": "Pending", "status": "True"}])
    async with lead_operator(decide, before) as it:
        it.bench.api.on("POST", f"/api/v1/namespaces/{NS}/pods", failure(403, "Forbidden", "exceeded quota"))
        await until(lambda: it.sent(STATUS) and it.sent(EVENTS) and it.at_rest())
        assert not missing_facts(it.sent(STATUS)[-1]["status"]["lastMessage"], "Pod p", "exceeded quota")
        assert it.sent(EVENTS)[0]["reason"] == "FailedCreate"
        pods = [asked for asked in it.bench.written() if asked.path.endswith("/pods")]
        assert len(pods) == 1
        assert len(it.sent(STATUS)) == 1


async def test_a_spec_that_breaks_the_rules_is_refused_and_nothing_is_decided() -> None:
    def decide(_job: IPUJob, _: Snapshot) -> JobPlan:
        raise AssertionError("nothing is to be decided")

    async with lead_operator(decide, job_object(finalizer=False), looks=("spec.x: no", "spec.y: no")) as it:
        await until(lambda: it.sent(STATUS) and it.sent(EVENTS))
        assert it.sent(STATUS)[0]["status"]["lastMessage"] == f"{REFUSED_LINE}spec.x: no; spec.y: no"
        assert it.sent(EVENTS)[0]["reason"] == "ValidationError"
        [invalid] = it.sent(STATUS)[0]["status"]["conditions"]
        assert (invalid["type"], invalid["status"], invalid["reason"]) == ("Invalid", "True", "ValidationError")
        # and it is not looked at with other eyes once that is written
        before = len(it.bench.written())
        for _ in range(3):
            it.operator._enqueue(f"{NS}/train")
            await until(lambda: it.operator._queue is not None and not len(it.operator._queue))
        assert len(it.bench.written()) == before
        assert it.turns == 0


async def test_a_spec_that_keeps_the_rules_again_is_no_longer_invalid() -> None:
    before = job_object(observedGeneration=1, conditions=[{"type": "Invalid", "status": "True"}])
    async with lead_operator(lambda *_: JobPlan(status=status(last_message="waits")), before) as it:
        await until(lambda: len(it.sent(STATUS)) == 2)
        accepted, decided = (sent["status"] for sent in it.sent(STATUS))
        assert [(each["type"], each["status"]) for each in accepted["conditions"]] == [("Invalid", "False")]
        assert decided["lastMessage"] == "waits"


async def test_a_conflict_is_decided_again() -> None:
    wanted = status(last_message="waits")
    async with lead_operator(lambda *_: JobPlan(status=wanted)) as it:
        patch = it.stored.patch
        it.bench.api.on("PATCH", STATUS, failure(409, "Conflict"), patch)
        await until(lambda: len(it.sent(STATUS)) == 2)
        assert it.metrics.registry.get_sample_value("muster_operator_conflicts_total") == 1


async def test_a_former_leader_decides_nothing() -> None:
    async with lead_operator(lambda *_: JobPlan(status=status(last_message="waits"))) as it:
        await until(lambda: it.sent(STATUS) and it.at_rest() and it.turns >= 2)
        it.bench.leads = False
        turns = it.turns
        it.operator._enqueue(f"{NS}/train")
        await until(it.at_rest)
        assert it.turns == turns


async def test_a_decision_that_never_rests_is_broken_off() -> None:
    foreign = {"metadata": {"name": "p", "namespace": NS, "resourceVersion": "3"}}
    numbers = iter(range(10_000))

    def decide(_job: IPUJob, _: Snapshot) -> JobPlan:
        return JobPlan((CreateObject("Pod", f"p{next(numbers)}", {}),))

    async with lead_operator(decide) as it:
        it.bench.api.on("POST", f"/api/v1/namespaces/{NS}/pods", Reply(201, foreign | {"kind": "Pod"}))
        await until(lambda: it.turns >= 32 and it.at_rest())
        assert it.turns < 200


async def test_jobs_that_wait_for_room_are_woken_once_the_oldest_first() -> None:
    looked: list[str] = []

    def decide(job: IPUJob, seen: Snapshot) -> JobPlan:
        looked.append(job.metadata.name)
        return JobPlan(waits_for_room=True)

    async with lead_operator(decide) as it:
        await until(it.at_rest)
        looked.clear()
        entry = PartitionEntry(job="u2", namespace=NS, name="other")
        text = msgspec.json.encode(entry).decode()
        for _ in range(5):
            it.operator.cluster.tracker.update({"p": text})
            it.operator.cluster.tracker.update({})
        await until(lambda: looked and it.at_rest())
        assert looked == ["train"]


async def test_a_job_is_planned_again_when_an_answer_that_no_watch_confirms_ends() -> None:
    """The entry was removed while the watch of the tracker was disconnected, so no event says so."""
    known: list[set[str]] = []

    def decide(_job: IPUJob, seen: Snapshot) -> JobPlan:
        known.append(set(seen.entries))
        return JobPlan(status=status())

    async with lead_operator(decide) as it:
        await until(it.at_rest)
        it.operator.cluster.tracker.note_answer("p", PartitionEntry(job="u1", namespace=NS, name="train", size=4))
        it.bench.now += RECEIVED_S - 0.05
        it.operator._enqueue(f"{NS}/train")
        await until(lambda: known[-1] == {"p"})
        it.bench.now += 0.05
        await until(lambda: known[-1] == set())
