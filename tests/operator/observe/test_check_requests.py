"""What jobs ask of agents through NodeHealths: a read and a write bound to it, and nobody else's entry changes."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import pytest
from tests.kube.conftest import Asked, Reply
from tests.operator.operator_bench import Object, OperatorBench, a_job, bench_around, failure, job_object, until
from tests.wording.facts import missing_facts

from muster_kube.api.errors import Conflict
from muster_kube.nodehealth import REQUESTS_LIMIT, CheckRequest
from muster_operator.act.orphans import OrphanCollector
from muster_operator.job.snapshot import ActionResult, RequestChecks, WithdrawRequests
from muster_operator.observe.check_requests import JOBS_LIMIT

HEALTHS = "/apis/muster.dev/v1alpha1/nodehealths"
PATH = f"{HEALTHS}/node-a"
OURS = CheckRequest(id="ipujob-u1-0-7", checks=("pciebw",), by="IPUJob ns/train")
OTHER = CheckRequest(id="ipujob-u2-0-7", checks=("ipu",), by="IPUJob ns/other")
ANN = CheckRequest(id="ann-1", checks=("ipu",), by="ann")


def health(*requests: CheckRequest, version: int = 9, answers: tuple[str, ...] = ()) -> Object:
    return {
        "kind": "NodeHealth",
        "metadata": {"name": "node-a", "uid": "nh", "resourceVersion": str(version)},
        "spec": {"requests": msgspec.to_builtins(requests)},
        "status": {
            "answers": [{"id": each, "verdict": "PASS", "finished": "2026-01-01T00:00:00Z"} for each in answers]
        },
    }


class StoredNodeHealth:
    """The NodeHealth as the API server has it; ours and others' requests are told apart by their manager."""

    def __init__(self, bench: OperatorBench, *requests: CheckRequest) -> None:
        self.now = health(*requests)
        bench.api.on("GET", PATH, lambda _: Reply(200, self.now))
        bench.api.on("PATCH", PATH, self._patch)

    def _patch(self, asked: Asked) -> Reply:
        body = json.loads(asked.body)
        version = self.now["metadata"]["resourceVersion"]
        if body["metadata"]["resourceVersion"] != version:
            return failure(409, "Conflict")
        said = body.get("spec", {}).get("requests") or []
        if asked.headers["content-type"] == "application/apply-patch+yaml":
            said = [each for each in self.now["spec"]["requests"] if not each["id"].startswith("ipujob-")] + said
        self.now["spec"]["requests"] = said
        self.now["metadata"]["resourceVersion"] = str(int(version) + 1)
        return Reply(200, self.now)

    def ids(self) -> list[str]:
        return [each["id"] for each in self.now["spec"]["requests"]]


@asynccontextmanager
async def watching(*items: Object) -> AsyncIterator[OperatorBench]:
    """NodeHealths are listed; those of ours among them."""
    async with bench_around() as bench:
        bench.lists(nodehealths=list(items))
        task = asyncio.create_task(bench.cluster.requests.reflector.run())
        try:
            await bench.cluster.requests.reflector.wait_synced()
            yield bench
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def test_only_nodes_of_which_something_is_asked_are_listed_and_watched() -> None:
    async with watching() as bench:
        await until(lambda: bench.api.asked_for("WATCH", HEALTHS))
        asked = bench.api.asked_for("GET", HEALTHS) + bench.api.asked_for("WATCH", HEALTHS)
        assert {each.query["labelSelector"] for each in asked} == {"muster.dev/ipujob-checks"}
        assert bench.cluster.requests.of_job("u1") == {}


async def test_a_request_is_added_once_beside_those_of_others() -> None:
    async with watching() as bench:
        stored = StoredNodeHealth(bench, ANN, OTHER)
        assert await bench.execute(a_job(), RequestChecks("node-a", OURS)) is ActionResult.DONE
        assert stored.ids() == ["ann-1", "ipujob-u2-0-7", "ipujob-u1-0-7"]
        [applied] = bench.written()
        assert applied.query["fieldManager"] == "muster-operator-checks"
        assert json.loads(applied.body)["metadata"]["labels"] == {"muster.dev/ipujob-checks": "true"}
        assert bench.cluster.requests.of_job("u1") == {"node-a": {OURS.id: None}}
        await bench.execute(a_job(), RequestChecks("node-a", OURS))
        assert len(bench.written()) == 1

        assert (
            await bench.execute(a_job(), WithdrawRequests("node-a", keep=frozenset({OURS.id}))) is ActionResult.NOTHING
        )
        assert await bench.execute(a_job(), WithdrawRequests("node-a")) is ActionResult.DONE
        assert stored.ids() == ["ann-1", "ipujob-u2-0-7"]
        assert bench.cluster.requests.of_job("u1") == {}
        assert list(bench.cluster.requests.jobs()) == [("ns/other", "u2")]


async def test_answers_are_seen_once_they_are_final() -> None:
    unfinished = health(OURS, OTHER, answers=(OURS.id,))
    unfinished["status"]["answers"].append({"id": OTHER.id, "verdict": "PASS", "finished": ""})
    async with watching(unfinished) as bench:
        found, other = (bench.cluster.requests.of_job(uid) for uid in ("u1", "u2"))
        assert found is not None
        answer = found["node-a"][OURS.id]
        assert answer is not None
        assert answer.verdict == "PASS"
        assert other == {"node-a": {OTHER.id: None}}
        assert sorted(bench.looked) == ["ns/other", "ns/train"]


@pytest.mark.parametrize(
    ("reply", "fact"),
    [
        (failure(404, "NotFound"), "NodeHealth"),
        (failure(403, "Forbidden", "may not get nodehealths"), "may not get nodehealths"),
        (
            Reply(200, health(*(msgspec.structs.replace(ANN, id=f"ann-{n}") for n in range(REQUESTS_LIMIT)))),
            "16",
        ),
        (
            Reply(
                200, health(*(msgspec.structs.replace(OTHER, id=f"ipujob-u{n}-0-7") for n in range(2, 2 + JOBS_LIMIT)))
            ),
            "8",
        ),
    ],
)
async def test_a_node_that_cannot_be_asked_is_remembered_and_asked_again_later(reply: Reply, fact: str) -> None:
    async with watching() as bench:
        bench.api.on("GET", PATH, reply)
        assert await bench.execute(a_job(), RequestChecks("node-a", OURS)) is ActionResult.NOTHING
        [(node, why)] = bench.refusals.failed_requests("u1").items()
        assert node == "node-a"
        assert not missing_facts(why, fact)
        assert bench.refusals.refused("u1") == {}, "nothing of the job's own was refused"
        assert bench.written() == []
        asked = len(bench.api.asked)
        await bench.execute(a_job(), RequestChecks("node-a", OURS))
        assert len(bench.api.asked) == asked
        assert bench.refusals.again_s("u1") is not None
        bench.now += 60.0
        StoredNodeHealth(bench)
        assert await bench.execute(a_job(), RequestChecks("node-a", OURS)) is ActionResult.DONE
        assert bench.refusals.failed_requests("u1") == {}


async def test_a_conflicting_write_decides_again() -> None:
    async with watching() as bench:
        bench.api.on("GET", PATH, Reply(200, health(ANN)))
        bench.api.on("PATCH", PATH, failure(409, "Conflict"))
        with pytest.raises(Conflict):
            await bench.execute(a_job(), RequestChecks("node-a", OURS))


async def test_a_request_that_may_not_be_withdrawn_holds_up_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async with watching(health(OURS)) as bench:
        bench.api.on("GET", PATH, failure(403, "Forbidden"))
        assert await bench.execute(a_job(), WithdrawRequests("node-a")) is ActionResult.NOTHING
        assert [record.levelname for record in caplog.records if "node-a" in record.getMessage()] == ["WARNING"]


@pytest.mark.parametrize("there", [True, False])
async def test_requests_of_a_deleted_job_are_withdrawn(there: bool) -> None:
    async with watching(health(OURS, OTHER)) as bench:
        stored = StoredNodeHealth(bench, OURS, OTHER)
        where = "/apis/graphcore.ai/v1alpha1/namespaces/ns/ipujobs/train"
        bench.api.on("GET", where, Reply(200, job_object()) if there else failure(404, "NotFound"))
        await OrphanCollector(bench.client, bench.cluster, bench.executor).collect("ns/train")
        assert stored.ids() == ([OURS.id, OTHER.id] if there else [OTHER.id])
