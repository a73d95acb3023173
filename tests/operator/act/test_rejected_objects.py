"""What the API server did not take is told while it is still wanted, whatever kind of no it was, and not for longer."""

from typing import Any

import pytest
from tests.kube.conftest import Reply
from tests.operator.operator_bench import NS, failure, job_object, pod_object, until
from tests.operator.test_controller import EVENTS, STATUS, lead_operator, status
from tests.wording.facts import missing_facts

from muster_operator.job.snapshot import AddFinalizer, CreateObject, FreePartition, JobPlan, Snapshot
from muster_operator.job.types import IPUJob

PODS = f"/api/v1/namespaces/{NS}/pods"
BEFORE: dict[str, Any] = {"observedGeneration": 1, "conditions": [{"type": "Pending", "status": "True"}]}
POD = CreateObject("Pod", "p", {"metadata": {"name": "p"}})


async def test_an_obsolete_refusal_is_no_reason_to_wait() -> None:
    """A scale down, a suspension or the end of the job: its last message is its own again, and stays."""
    wanted = [POD]

    def decide(_job: IPUJob, _: Snapshot) -> JobPlan:
        return JobPlan(tuple(wanted), status(last_message="All instances done"))

    async with lead_operator(decide, job_object(**BEFORE)) as it:
        it.bench.api.on("POST", PODS, failure(403, "Forbidden", "exceeded quota"))
        await until(lambda: it.sent(STATUS) and it.at_rest())
        assert not missing_facts(it.sent(STATUS)[-1]["status"]["lastMessage"], "Pod p", "exceeded quota")
        wanted.clear()
        it.operator._enqueue(f"{NS}/train")
        await until(lambda: len(it.sent(STATUS)) == 2 and it.at_rest())
        assert it.sent(STATUS)[-1]["status"]["lastMessage"] == "All instances done"


@pytest.mark.parametrize(("code", "reason"), [(400, "BadRequest"), (400, ""), (413, "RequestEntityTooLarge")])
async def test_an_undecodable_template_and_a_webhook_rejection_are_reported(code: int, reason: str) -> None:
    """A number where text belongs is 400 (json: cannot unmarshal …), and so is the no of many admission webhooks."""

    def decide(_job: IPUJob, _: Snapshot) -> JobPlan:
        return JobPlan((POD,), status(last_message="runs"))

    async with lead_operator(decide, job_object(**BEFORE)) as it:
        it.bench.api.on("POST", PODS, failure(code, reason, "cannot unmarshal"))
        await until(lambda: it.sent(STATUS) and it.sent(EVENTS) and it.at_rest())
        assert not missing_facts(it.sent(STATUS)[-1]["status"]["lastMessage"], "Pod p", "cannot unmarshal")
        assert len([asked for asked in it.bench.written() if asked.path == PODS]) == 1


async def test_a_job_without_its_finalizer_is_not_counted_twice() -> None:
    """`kubectl replace` with the user's own file does it."""

    def decide(job: IPUJob, _: Snapshot) -> JobPlan:
        return JobPlan(status=status()) if job.metadata.finalizers else JobPlan((AddFinalizer(),))

    async with lead_operator(decide, job_object(finalizer=False, **BEFORE)) as it:
        await until(lambda: it.bench.written() and it.at_rest())
        assert it.metrics.registry.get_sample_value("muster_operator_jobs_created_total") == 0


async def test_a_proxy_that_is_away_holds_up_no_pods_while_a_scale_down_waits_for_it() -> None:
    """A worker of an instance that stays, deleted by hand, comes back (behaviour 28)."""

    def decide(_job: IPUJob, seen: Snapshot) -> JobPlan:
        return JobPlan(
            (FreePartition("p-train-ns-1"), *([] if "p" in seen.pods else [POD])), status(last_message="runs")
        )

    async with lead_operator(decide, job_object(**BEFORE)) as it:
        it.bench.api.on("POST", PODS, Reply(201, pod_object("p")))
        await until(lambda: it.sent(STATUS) and it.at_rest())
        assert [asked.path for asked in it.bench.written()] == [PODS, STATUS]
        assert it.bench.played.asked == [("DELETE", "/partitions/p-train-ns-1")]


async def test_a_job_that_is_gone_is_not_written_again_and_again_until_the_watch_says_so() -> None:
    async with lead_operator(
        lambda *_: JobPlan(status=status(last_message="waits")), job_object(observedGeneration=1)
    ) as it:
        it.bench.api.on("PATCH", STATUS, failure(404, "NotFound"))
        await until(lambda: it.sent(STATUS) and it.at_rest())
        assert len(it.sent(STATUS)) < 8, "tries come with a back-off"
