"""From a Prometheus to findings, Events and evictions, as the leader runs it."""

import json
from collections.abc import AsyncIterator
from random import Random
from typing import Any

import pytest
from tests.kube.conftest import Asked, Reply
from tests.tainter.sources.test_loki_feed import until
from tests.tainter.step_times.scraped_jobs import START, Answer, Points, ScrapedJob, answer_of
from tests.tainter.step_times.step_bench import StepBench, step_bench
from tests.tainter.step_times.test_job_verdict import JOB, STEPS, pipeline, slow_job

from muster_tainter.step_times.judge import JudgeFailed
from muster_tainter.step_times.owner_policy import ANNOTATION
from muster_tainter.step_times.reporter import QUIET_WINDOWS

MOVE = {ANNOTATION: "checkpoint-and-move"}


@pytest.fixture
async def bench() -> AsyncIterator[StepBench]:
    async with step_bench() as made:
        made.server.answers["train"] = answer_of(slow_job(), Random(2))
        for rank in range(4):
            made.pod(f"train-{rank}", f"n{rank}")
        yield made


def even_answer() -> Answer:
    """Nobody is slow."""
    return answer_of(ScrapedJob(slow_job(factor=1.0).seconds), Random(2))


async def test_the_node_of_a_slow_rank_has_a_warning_and_its_pod_an_event(bench: StepBench) -> None:
    async with bench.leading():
        await bench.window()
        [finding] = bench.findings("n1")
        assert (finding.component, finding.reason, finding.verdict, finding.fault_class) == (
            "host", "SlowRank", "WARN", "",
        )  # fmt: skip
        assert [bench.findings(node) for node in ("n0", "n2", "n3")] == [[], [], []]
    assert bench.told == ["Pod/train-1"]
    assert bench.events[0]["reason"] == "SlowRank"
    for fact in ("rank 1", "train-1", "n1", "ml/train", "GPU 1"):
        assert fact in bench.events[0]["message"]
    assert [question.looks for question in bench.judged] == [48]


async def test_owners_get_the_event_too(bench: StepBench) -> None:
    owner = {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "name": "train", "uid": "u", "controller": True}
    bench.pod("train-1", "n1", ownerReferences=[owner])
    async with bench.leading():
        await bench.window()
    assert bench.told == ["Pod/train-1", "PyTorchJob/train"]


async def test_each_window_is_judged_once_and_told_once(bench: StepBench) -> None:
    async with bench.leading():
        await bench.window()
        await bench.next_window()
        await bench.next_window()
        [finding] = bench.findings("n1")
        assert finding.occurrence > 0
    assert len(bench.judged) == len({question.seed for question in bench.judged}) == 3
    assert bench.told == ["Pod/train-1"]
    bench.judged.clear()
    async with bench.leading():  # a new leader judges the window again, with the same seed, and tells nobody twice
        await until(lambda: bench.judged, "judged again")
        await until(lambda: bench.findings("n1"), "found again")
    assert bench.told == ["Pod/train-1"]


async def test_the_finding_ends_when_the_rank_is_no_longer_slow(bench: StepBench) -> None:
    async with bench.leading():
        await bench.window()
        bench.server.answers["train"] = even_answer()
        for _ in range(QUIET_WINDOWS):
            await bench.next_window()
        await bench.next_window()
        assert bench.findings("n1") == []


async def test_step_times_that_leave_the_policy_end_their_findings(bench: StepBench) -> None:
    async with bench.leading():
        await bench.window()
        assert bench.findings("n1")
        bench.fleet.current = bench.fleet.current.model_copy(
            update={"sources": bench.fleet.current.sources.model_copy(update={"step_times": None})}
        )
        assert bench.feed is not None
        bench.feed.look_at_all()
        await until(lambda: not bench.findings("n1"), "ended")


@pytest.mark.parametrize(
    ("pod", "homeless"),
    [
        ({"name": "train-1", "node": "n1", "created": START + 2000}, 1.0),  # created after its rank became slow
        ({"name": "train-1", "node": ""}, 1.0),
        ({"name": "train-1", "node": "no-such-node"}, 1.0),
    ],
)
async def test_a_pod_that_cannot_be_the_slow_one_blames_no_node(
    bench: StepBench, pod: dict[str, Any], homeless: float
) -> None:
    bench.pod(**pod)
    async with bench.leading():
        await bench.window()
        assert [bench.findings(node) for node in bench.nodes] == [[], [], [], []]
    assert (bench.told, bench.value("source_lines_total", source="stepTimes", what="homeless")) == ([], homeless)


@pytest.mark.parametrize("pod", ["../../nodes/n1", "a/b", "", "x" * 300])
async def test_a_name_that_no_pod_has_is_not_asked_for(bench: StepBench, pod: str) -> None:
    bench.server.answers["train"] = answer_of(slow_job(), Random(2), more={"pod": pod})
    async with bench.leading():
        await bench.window()
        assert bench.api.asked == []
        assert bench.value("step_time_jobs", verdict="node") == 1.0


async def test_a_rank_that_is_slow_wherever_it_runs_is_not_its_nodes_fault(bench: StepBench) -> None:
    async with bench.leading():
        await bench.window()
        bench.pod("train-1", "n3")
        await bench.next_window()
        assert bench.findings("n3") == []
    assert "n1" in bench.events[1]["message"]


@pytest.mark.parametrize(
    ("annotation", "evict", "told", "evicted"),
    [
        (None, True, True, 0),
        ("notify", True, True, 0),
        ("continue", True, False, 0),
        ("checkpoint-and-move", True, True, 1),
        ("checkpoint-and-move", False, True, 0),
        ("delete everything", True, True, 0),
    ],
)
async def test_the_owner_decides(
    bench: StepBench, annotation: str | None, evict: bool, told: bool, evicted: int
) -> None:
    bench.use(evict=evict)
    bench.pod("train-1", "n1", annotations={ANNOTATION: annotation} if annotation else {})
    evictions = taking_evictions(bench)
    async with bench.leading():
        await bench.window()
        assert bench.findings("n1")
    assert (len(bench.events), len(evictions)) == (int(told), evicted)
    assert bench.value("straggler_evictions_total", result="evicted") == (evicted or None)


def taking_evictions(bench: StepBench) -> list[dict[str, Any]]:
    taken: list[dict[str, Any]] = []

    def take(asked: Asked) -> Reply:
        taken.append(json.loads(asked.body))
        return Reply(201, {})

    bench.api.on("GET", "/api/v1", Reply(200, {"resources": [{"name": "pods/eviction", "version": "v1"}]}))
    for rank in range(4):
        bench.api.on("POST", f"/api/v1/namespaces/ml/pods/train-{rank}/eviction", take)
    return taken


async def test_one_pod_of_a_job_is_evicted_at_a_time_and_none_while_muster_is_paused(bench: StepBench) -> None:
    seconds = [list(row) for row in slow_job(rank=1).seconds]
    seconds[2] = [each * 1.8 for each in seconds[2]]
    bench.server.answers["train"] = answer_of(ScrapedJob([*seconds, *slow_job(factor=1).seconds]), Random(2))
    bench.use(evict=True)
    for rank in (1, 2):
        bench.pod(f"train-{rank}", f"n{rank}", annotations=MOVE)
    evictions = taking_evictions(bench)
    bench.fleet.withheld = lambda: "paused by ann"
    async with bench.leading():
        await bench.window()
        assert len(bench.events) == 2
        assert evictions == []
        bench.fleet.withheld = lambda: ""
        await bench.next_window()
    assert [each["metadata"]["name"] for each in evictions] == ["train-2"]  # the slowest


async def test_a_pod_that_is_no_longer_slow_is_not_evicted(bench: StepBench) -> None:
    bench.use(evict=True)
    bench.pod("train-1", "n1", annotations=MOVE)
    seconds = [list(row) for row in slow_job(factor=1).seconds]
    seconds[1][300:900] = [1.5 * each for each in seconds[1][300:900]]
    bench.server.answers["train"] = answer_of(ScrapedJob(seconds), Random(2))
    evictions = taking_evictions(bench)
    async with bench.leading():
        await bench.window()
        assert bench.findings("n1")
    assert evictions == []


async def test_a_dry_run_tells_nobody(bench: StepBench) -> None:
    bench.dry_run = True
    bench.use(evict=True)
    bench.pod("train-1", "n1", annotations=MOVE)
    async with bench.leading():
        await bench.window()
    assert bench.events == []
    assert bench.api.asked_for("POST") == []


async def test_at_most_so_many_jobs_are_judged(bench: StepBench) -> None:
    bench.server.answers |= {"b": even_answer(), "c": even_answer()}
    bench.server.ranks = {"train": 4, "b": 3, "c": 6_000}
    bench.use(jobs=2)
    async with bench.leading():
        await bench.window()
        verdicts = ("node", "nobody", "left_out", "too_large")
        assert [bench.value("step_time_jobs", verdict=verdict) for verdict in verdicts] == [1.0, 0.0, 1.0, 1.0]


async def test_a_job_with_one_rank_is_not_asked_for(bench: StepBench) -> None:
    bench.server.ranks = {"train": 1}
    async with bench.leading():
        await bench.window()
        assert bench.server.ranges == []
        assert bench.value("step_time_jobs", verdict="one_rank") == 1.0


@pytest.mark.parametrize("failure", [(503, {}, b"overloaded"), (400, {}, b"parse error"), (200, {}, b"<html>")])
async def test_a_server_that_fails_is_asked_again(bench: StepBench, failure: Any) -> None:
    bench.server.failure = failure
    async with bench.leading():
        await until(lambda: len(bench.server.queries) > 3, "asked again")
        assert bench.value("source_up", source="stepTimes") == 0.0
        bench.server.failure = None
        await bench.window()
        assert bench.value("source_up", source="stepTimes") == 1.0
        assert bench.findings("n1")


async def test_an_api_server_that_fails_repeats_no_judgement(bench: StepBench) -> None:
    path = "/api/v1/namespaces/ml/pods/train-1"
    [good] = bench.api._scripts["GET", path]
    bench.api.on("GET", path, *[Reply(503, {"kind": "Status", "code": 503, "reason": "ServiceUnavailable"})] * 2, good)
    async with bench.leading():
        await bench.window()
        assert bench.findings("n1")
    assert len(bench.judged) == 1


async def test_a_child_process_that_ends_early_leaves_the_other_jobs(bench: StepBench) -> None:
    async def judge(_question: Any, _body: Any) -> Any:
        raise JudgeFailed("killed")

    bench.server.answers["b"] = even_answer()
    async with bench.leading(judge=judge):
        await bench.window()
        assert bench.value("step_time_jobs", verdict="failed") == 2.0


async def test_the_owner_hears_of_a_stall_and_no_node_is_suspected(bench: StepBench) -> None:
    def change(rank: int, points: Points) -> Points:
        at, _, total = points[-1]
        return [*points[:-1], *((at + 30 * number, 5_000.0 - (rank == 1), total) for number in range(40))]

    bench.server.answers["train"] = answer_of(ScrapedJob(slow_job(factor=1.0).seconds), Random(2), change)
    bench.use(evict=True)
    bench.pod("train-1", "n1", annotations=MOVE)
    async with bench.leading():
        await bench.window()
        assert bench.value("step_time_jobs", verdict="stalled") == 1.0
        await bench.next_window()
        assert bench.findings("n1") == []
    assert [(each["involvedObject"]["name"], each["reason"]) for each in bench.events] == [("train-1", "StalledRank")]


@pytest.mark.parametrize("policy", ["checkpoint-and-move", "continue"])
async def test_the_owner_hears_of_skewed_data_and_no_node_is_suspected(bench: StepBench, policy: str) -> None:
    work = [[1500.0 if rank == 1 else 1000.0] * STEPS for rank in range(4)]
    bench.server.answers["train"] = answer_of(ScrapedJob(slow_job(since=0).seconds, work=work), Random(2))
    bench.use(evict=True)
    bench.pod("train-1", "n1", annotations={ANNOTATION: policy})
    async with bench.leading():
        await bench.window()
        assert bench.value("step_time_jobs", verdict="data") == 1.0
        assert [bench.findings(node) for node in bench.nodes] == [[], [], [], []]
    events = [(each["involvedObject"]["name"], each["reason"]) for each in bench.events]
    assert events == ([] if policy == "continue" else [("train-1", "SkewedData")])


@pytest.mark.parametrize("policy", ["checkpoint-and-move", "continue"])
async def test_the_owner_hears_of_a_slow_stage_and_no_node_is_suspected(bench: StepBench, policy: str) -> None:
    bench.server.answers["train"] = answer_of(pipeline(JOB.seconds(Random(1))), Random(2))
    bench.use(evict=True)
    bench.pod("train-1", "n1", annotations={ANNOTATION: policy})
    async with bench.leading():
        await bench.window()
        assert bench.value("step_time_jobs", verdict="stage") == 1.0
        assert [bench.findings(node) for node in bench.nodes] == [[], [], [], []]
    told = [(each["involvedObject"]["name"], each["reason"]) for each in bench.events]
    assert told == ([] if policy == "continue" else [("train-1", "SlowStage")])


JOB_PATH = "/apis/batch/v1/namespaces/ml/jobs/train"
STOP = {ANNOTATION: "stop"}


@pytest.mark.parametrize(
    ("template", "job", "answer", "suspended"),
    [
        (STOP, {}, {"suspend": True}, True),
        (STOP, {}, {}, False),  # a server of before 1.21 drops the field
        (STOP, {"ownerReferences": [{"apiVersion": "batch/v1", "kind": "CronJob", "name": "nightly", "uid": "c",
                                     "controller": True}]}, {"suspend": True}, True),
        ({}, {}, {"suspend": True}, False),  # the pod claims an owner that did not ask
        (STOP, {"uid": "another"}, {"suspend": True}, False),
        (STOP, {"ownerReferences": [{"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "name": "set",
                                     "uid": "s", "controller": True}]}, {"suspend": True}, False),
    ],
)  # fmt: skip
async def test_a_job_is_suspended_if_its_own_template_asks(
    bench: StepBench, template: dict[str, str], job: dict[str, Any], answer: dict[str, Any], suspended: bool
) -> None:
    bench.use(suspend=True)
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": "u", "controller": True}
    bench.pod("train-1", "n1", annotations=STOP, ownerReferences=[owner])
    metadata = {"name": "train", "uid": "u", **job}
    body = {"metadata": metadata, "spec": {"template": {"metadata": {"annotations": template}}}}
    bench.api.on("GET", JOB_PATH, Reply(200, body))
    bench.api.on("PATCH", JOB_PATH, Reply(200, {"metadata": metadata, "spec": answer}))
    async with bench.leading():
        await bench.window()
    patches = [json.loads(asked.body) for asked in bench.api.asked_for("PATCH")]
    asked_for = suspended or (template == STOP and not job)
    assert patches == ([{"metadata": {"uid": "u"}, "spec": {"suspend": True}}] if asked_for else [])
    assert "Pod/train-1" in bench.told


async def test_a_pod_without_a_job_is_stopped_by_its_eviction_if_the_policy_allows_that(bench: StepBench) -> None:
    evictions = taking_evictions(bench)
    bench.pod("train-1", "n1", annotations=STOP)
    bench.use(suspend=True)
    async with bench.leading():
        await bench.window()
        assert evictions == []
        bench.use(evict=True)
        await bench.next_window()
    assert [each["metadata"]["name"] for each in evictions] == ["train-1"]
    assert bench.api.asked_for("PATCH") == []


async def test_a_policy_that_forbids_it_suspends_nothing(bench: StepBench) -> None:
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": "u", "controller": True}
    bench.pod("train-1", "n1", annotations=STOP, ownerReferences=[owner])
    body = {"metadata": {"name": "train", "uid": "u", "annotations": STOP}, "spec": {}}
    bench.api.on("GET", JOB_PATH, Reply(200, body))
    bench.use(suspend=[])
    async with bench.leading():
        await bench.window()
        bench.use(suspend=["JobSet"])
        await bench.next_window()
    assert bench.api.asked_for("PATCH") == []


@pytest.mark.parametrize("failure", [(400, {}, b"parse error"), (503, {}, b"query timed out"), (200, {}, b"<html>")])
async def test_a_job_that_prometheus_cannot_answer_for_holds_no_other_up(bench: StepBench, failure: Any) -> None:
    bench.server.answers["bad"] = even_answer()
    bench.server.ranks = {"train": 4, "bad": 5}  # it comes first
    bench.server.refused["bad"] = failure
    async with bench.leading():
        await bench.window()
        assert bench.findings("n1")
        assert [bench.value("step_time_jobs", verdict=each) for each in ("node", "unusable")] == [1.0, 1.0]


async def test_a_pod_that_the_api_server_cannot_read_holds_no_other_job_up(bench: StepBench) -> None:
    bench.server.answers["bad"] = answer_of(slow_job(), Random(2), more={"pod": "broken"})
    bench.server.ranks = {"train": 4, "bad": 5}
    broken = Reply(500, {"kind": "Status", "code": 500, "reason": "InternalError"})
    bench.api.on("GET", "/api/v1/namespaces/ml/pods/broken", broken)
    async with bench.leading():
        await bench.window()
        assert bench.findings("n1")
