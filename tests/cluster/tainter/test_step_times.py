"""Step times in a real Prometheus, and what follows from a slow rank on a real API server."""

import subprocess
import time
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from random import Random
from typing import Any

import pytest
from tests.cluster.tainter import test_end_to_end as end_to_end
from tests.cluster.tainter.test_drain_repair import budgets_of
from tests.cluster.tainter.test_end_to_end import Tainters, until
from tests.cluster.tainter.test_pod_notification import GPU, Work, pod_spec
from tests.tainter.fake_fleet import FakeFleet
from tests.tainter.step_times.scraped_jobs import START, ScrapedJob
from tests.tainter.step_times.step_bench import WINDOW_S, StepBench, step_bench
from tests.tainter.step_times.test_job_verdict import slow_job

from muster_kube.api.client import KubeClient
from muster_kube.api.errors import NotFound
from muster_kube.api.objects import Metadata, Node
from muster_sandbox.prometheus import Prometheus, PrometheusPrograms, find_programs
from muster_sandbox.simulation.kubelets import Kubelets
from muster_sandbox.simulation.nodes import SimulatedNodes
from muster_tainter.fleet.replica import Replica
from muster_tainter.metrics import TainterMetrics
from muster_tainter.policy.sections.sources import StepTimesSource
from muster_tainter.step_times.job_queries import JobKey
from muster_tainter.step_times.job_verdict import JobVerdict, SlowRank
from muster_tainter.step_times.metrics import StepTimesMetrics
from muster_tainter.step_times.owner_policy import ANNOTATION
from muster_tainter.step_times.reporter import StragglerReporter

tainters = end_to_end.tainters  # fixture
SLOW = ScrapedJob([[2 * each for each in row] for row in slow_job(since=100).seconds])
EVEN = ScrapedJob([[2 * each for each in row] for row in slow_job(factor=1.0).seconds])


def backfill(programs: PrometheusPrograms, folder: Path, jobs: Mapping[str, ScrapedJob], begin: float) -> None:
    """What Prometheus would have scraped from these jobs since ``begin``, as blocks of its database."""
    families: dict[str, list[str]] = {"sum": [], "count": []}
    for name, job in jobs.items():
        for rank in range(len(job.seconds)):
            labels = f'rank="{rank}",gpu="0",namespace="ml",pod="train-{rank}",batch_kubernetes_io_job_name="{name}"'
            for at, count, total in job.points(rank, Random(rank)):
                when = begin + at - START
                families["sum"].append(f"muster_step_seconds_sum{{{labels}}} {total} {when:.3f}")
                families["count"].append(f"muster_step_seconds_count{{{labels}}} {count} {when:.3f}")
    file = folder / "scraped.txt"
    lines = ["# TYPE muster_step_seconds summary", *families["sum"], *families["count"], "# EOF", ""]
    file.write_text("\n".join(lines))
    words = [str(programs.promtool), "tsdb", "create-blocks-from", "openmetrics", str(file), str(folder / "data")]
    subprocess.run(words, check=True, capture_output=True)


@pytest.fixture
async def bench() -> AsyncIterator[StepBench]:
    async with step_bench() as made:
        yield made


async def test_a_real_prometheus_names_the_slow_rank_of_one_of_two_jobs(bench: StepBench, tmp_path: Path) -> None:
    programs = find_programs(print)
    folder = tmp_path / "prometheus"
    folder.mkdir()
    bench.now = time.time()
    end = (bench.now - 30) // WINDOW_S * WINDOW_S
    backfill(programs, folder, {"train": SLOW, "even": EVEN}, end - WINDOW_S - 300)
    for rank in range(4):
        bench.pod(f"train-{rank}", f"n{rank}", created=end - 2 * WINDOW_S)
    with Prometheus(programs, folder, []) as prometheus:
        bench.use(url=prometheus.url)
        async with bench.leading():
            await bench.window()
            assert {node: len(bench.findings(node)) for node in bench.nodes} == {"n0": 0, "n1": 1, "n2": 0, "n3": 0}
            verdicts = {verdict: bench.value("step_time_jobs", verdict=verdict) for verdict in ("node", "nobody")}
            assert verdicts == {"node": 1.0, "nobody": 1.0}
    assert bench.told == ["Pod/train-1"]


async def test_the_tainter_judges_a_job_in_a_process_of_its_own(tainters: Tainters, tmp_path: Path) -> None:
    programs = find_programs(print)
    folder = tmp_path / "prometheus"
    folder.mkdir()
    # long enough for two windows: the next one may be over when the tainter first looks
    even = ScrapedJob([[2.6 * each for each in row] for row in slow_job(factor=1.0).seconds])
    backfill(programs, folder, {"even": even}, (time.time() - 30) // WINDOW_S * WINDOW_S - WINDOW_S - 300)
    with Prometheus(programs, folder, []) as prometheus:
        policy = tmp_path / "policy.yaml"
        policy.write_text(f"rules: []\nsources: {{stepTimes: {{url: '{prometheus.url}'}}}}\n")
        tainter = await tainters.start("--policy", str(policy))

        async def judged() -> bool:
            return 'muster_tainter_step_time_jobs{verdict="nobody"} 1.0' in (await tainter.get("/metrics")).text

        await until(judged, "the job is judged")


class Owners:
    """A reporter on the real API server, with the simulated nodes as its fleet."""

    def __init__(self, api: KubeClient, nodes: list[str]) -> None:
        self.api = api
        self.fleet = FakeFleet(nodes={name: Node(metadata=Metadata(name=name)) for name in nodes})
        self.metrics = TainterMetrics()
        own = StepTimesMetrics(self.metrics.registry)
        self.reporter = StragglerReporter(api, self.fleet, Replica(may_write=lambda: True), self.metrics, own)

    async def report(self, namespace: str, *pods: str, **fields: Any) -> int:
        where = StepTimesSource.model_validate({"url": "http://prometheus", **fields})
        at = time.time() + 60  # the pods are older
        slow = tuple(
            SlowRank(number, "", pod, "", since=10, since_at=at, until=None, until_at=at + 1, excess=0.5, p=0.001)
            for number, pod in enumerate(pods)
        )
        verdict = JobVerdict("node", ranks=8, steps=1000, slowdown=0.4, slow=slow)
        return await self.reporter.report(where, JobKey(namespace, "train", "job_name"), verdict)

    def evictions(self, result: str) -> float | None:
        return self.metrics.registry.get_sample_value("muster_tainter_straggler_evictions_total", {"result": result})


async def events(api: KubeClient, namespace: str) -> list[str]:
    found = (await api.get(f"/api/v1/namespaces/{namespace}/events"))["items"]
    about = [each["involvedObject"] for each in found if each["reason"] == "SlowRank"]
    return sorted(f"{each['kind']}/{each['name']}" for each in about)


async def test_a_pod_and_its_job_hear_of_it_once(api: KubeClient, fleet: SimulatedNodes, namespace: str) -> None:
    [bad] = await fleet.create(1, prefix="slow")
    work = Work(type("Has", (), {"api": api})(), namespace)
    pod = await work.job("train", bad)
    owners = Owners(api, [bad])
    assert await owners.report(namespace, pod, "no-such-pod") == 1
    assert await events(api, namespace) == ["Job/train", f"Pod/{pod}"]
    assert [*owners.fleet.external_findings.of(bad)[0]] == [("stragglers", "host", "SlowRank")]
    another = Owners(api, [bad])  # a new leader
    await another.report(namespace, pod)
    assert await events(api, namespace) == ["Job/train", f"Pod/{pod}"]
    await work.stop()


async def test_a_slow_pod_is_evicted_as_its_owner_asks_but_not_against_its_budget(
    api: KubeClient, fleet: SimulatedNodes, kubelets: Kubelets, namespace: str
) -> None:
    [bad] = await fleet.create(1, prefix="slow")
    owners = Owners(api, [bad])
    pods = f"/api/v1/namespaces/{namespace}/pods"
    for name, asks in (("moves", "checkpoint-and-move"), ("guarded", "checkpoint-and-move"), ("stays", "notify")):
        metadata = {"name": name, "labels": {"pod": name}, "annotations": {ANNOTATION: asks}}
        await api.create(pods, {"metadata": metadata, "spec": pod_spec(bad, GPU)})
    budgets = await budgets_of(api, namespace)
    spec = {"minAvailable": 1, "selector": {"matchLabels": {"pod": "guarded"}}}
    await api.create(budgets, {"metadata": {"name": "guarded"}, "spec": spec})

    async def guarded() -> bool:
        return bool((await api.get(f"{budgets}/guarded")).get("status", {}).get("currentHealthy") == 1)

    await until(guarded, "the budget has counted its pod")
    for name in ("moves", "guarded", "stays"):
        await owners.report(namespace, name, evict=True)

    async def gone() -> bool:
        try:
            return bool((await api.get(f"{pods}/moves"))["metadata"].get("deletionTimestamp"))
        except NotFound:
            return True

    await until(gone, "the pod is evicted")
    assert "deletionTimestamp" not in (await api.get(f"{pods}/stays"))["metadata"]
    assert "deletionTimestamp" not in (await api.get(f"{pods}/guarded"))["metadata"]
    assert (owners.evictions("evicted"), owners.evictions("refused")) == (1.0, 1.0)
    assert await events(api, namespace) == ["Pod/guarded", "Pod/moves", "Pod/stays"]
