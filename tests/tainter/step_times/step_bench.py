"""A feed of step times beside a Prometheus and an API server, both over HTTP and made of values."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.kube.conftest import Asked, FakeApi, Reply
from tests.tainter.fake_fleet import FakeFleet
from tests.tainter.sources.loki_stub import Answer as HttpAnswer
from tests.tainter.sources.loki_stub import LokiServer, Store, serving
from tests.tainter.sources.test_loki_feed import until
from tests.tainter.step_times.scraped_jobs import START, Answer

from muster_kube.api.client import KubeClient
from muster_kube.api.config import ClusterConfig
from muster_kube.api.objects import Metadata, Node
from muster_kube.api.times import rfc3339_whole
from muster_kube.controller.backoff import Backoff
from muster_kube.nodehealth import ReportedFinding
from muster_tainter.fleet.replica import Replica
from muster_tainter.metrics import TainterMetrics
from muster_tainter.policy.file import parse_policy
from muster_tainter.sources.source_status import SourceMetrics
from muster_tainter.step_times.feed import StepTimesFeed
from muster_tainter.step_times.job_verdict import JobQuestion, JobVerdict, judge_job

WINDOW_S = 1800.0
NOW = (START // WINDOW_S + 2) * WINDOW_S + 60
POD_PATH = "/api/v1/namespaces/ml/pods/{}"


class StepServer(LokiServer):
    """answers: by job, what a range query returns; ranks: how many series the list says; failure: returned instead;
    refused: for one job.

    now: its clock
    """

    def __init__(self) -> None:
        super().__init__(Store(clock=lambda: self.now))
        self.now = NOW
        self.answers: dict[str, Answer] = {}
        self.ranks: dict[str, int] = {}
        self.failure: HttpAnswer | None = None
        self.refused: dict[str, HttpAnswer] = {}
        self.queries: list[Mapping[str, str]] = []

    def answer(self, target: str, headers: dict[str, str]) -> HttpAnswer:
        parts = urlsplit(target)
        asked = {name: values[-1] for name, values in parse_qs(parts.query).items()}
        self.queries.append(asked)
        if self.failure is not None:
            return self.failure
        if parts.path == "/api/v1/query_range":
            [job] = [job for job in self.answers if f'job_name="{job}"' in asked["query"]]
            if job in self.refused:
                return self.refused[job]
            return 200, {}, self.answers[job].body()
        result = [
            {
                "metric": {"namespace": "ml", "job_name": job},
                "value": [NOW, str(self.ranks.get(job, len(answer.result) // 2))],
            }
            for job, answer in self.answers.items()
        ]
        return 200, {}, json.dumps({"status": "success", "data": {"resultType": "vector", "result": result}}).encode()

    @property
    def ranges(self) -> list[str]:
        return [asked["query"] for asked in self.queries if "start" in asked]


class StepBench:
    """now: everybody's clock. pods: what the API server answers, by name; events: what was created there."""

    def __init__(self, api: FakeApi, client: KubeClient, server: StepServer) -> None:
        self.api, self.client, self.server = api, client, server
        self.judged: list[JobQuestion] = []
        self.nodes = {name: Node(metadata=Metadata(name=name)) for name in ("n0", "n1", "n2", "n3")}
        self.events: list[dict[str, Any]] = []
        self.metrics = TainterMetrics()
        self.fleet = FakeFleet(nodes=self.nodes)
        self.feed: StepTimesFeed | None = None
        self.dry_run = False
        self.use()
        api.on("POST", "/api/v1/namespaces/ml/events", self._take)

    @property
    def now(self) -> float:
        return self.server.now

    @now.setter
    def now(self, now: float) -> None:
        self.server.now = now

    def use(self, **fields: Any) -> None:
        """The policy has these fields of ``stepTimes``."""
        document = {"rules": [], "sources": {"stepTimes": {"url": self.server.url, **fields}}}
        self.fleet.current = parse_policy(json.dumps(document))
        if self.feed is not None:
            self.feed.look_at_all()

    def pod(self, name: str, node: str, *, created: float = START - 60, **metadata: Any) -> None:
        meta = {
            "name": name, "namespace": "ml", "uid": f"uid-{name}-{node}",
            "creationTimestamp": rfc3339_whole(created), **metadata,
        }  # fmt: skip
        body = {"metadata": meta, "spec": {"nodeName": node}, "status": {"phase": "Running"}}
        self.api.on("GET", POD_PATH.format(name), Reply(200, body))

    def _take(self, asked: Asked) -> Reply:
        event = json.loads(asked.body)
        if event["metadata"]["name"] in {each["metadata"]["name"] for each in self.events}:
            return Reply(409, {"kind": "Status", "code": 409, "reason": "AlreadyExists", "message": "there"})
        self.events.append(event)
        return Reply(201, event)

    @property
    def told(self) -> list[str]:
        return [f"{each['involvedObject']['kind']}/{each['involvedObject']['name']}" for each in self.events]

    def findings(self, node: str) -> list[ReportedFinding]:
        return list(self.fleet.external_findings.of(node)[0].values())

    def value(self, name: str, **labels: str) -> float | None:
        return self.metrics.registry.get_sample_value(f"muster_tainter_{name}", labels)

    async def _judge(self, question: JobQuestion, body: bytearray) -> JobVerdict:
        self.judged.append(question)
        return judge_job(JobQuestion(question.labels, question.seed, 1, question.reading_s), bytes(body))

    @asynccontextmanager
    async def leading(self, **more: Any) -> AsyncIterator[None]:
        self.metrics = TainterMetrics()
        replica = Replica(may_write=lambda: True, dry_run=self.dry_run, now=lambda: self.now)
        self.feed = StepTimesFeed(
            self.client,
            self.fleet,
            replica,
            self.metrics,
            SourceMetrics(self.metrics.registry),
            **{"judge": self._judge, "look_s": 0.01, "backoff": Backoff(base_s=0.01, cap_s=0.02), **more},
        )
        task = asyncio.create_task(self.feed.run())
        try:
            yield
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    async def window(self) -> None:
        """The window that is over has been judged."""
        end = (self.now - 30) // WINDOW_S * WINDOW_S
        await until(lambda: self.value("source_read_to_seconds", source="stepTimes") == end, "a window is judged")

    async def next_window(self) -> None:
        self.now += WINDOW_S
        await self.window()


@asynccontextmanager
async def step_bench() -> AsyncIterator[StepBench]:
    api = FakeApi()
    await api.start()
    config = ClusterConfig(server=f"http://127.0.0.1:{api.port}", namespace="x", origin="test")
    server = StepServer()
    async with KubeClient(config, user_agent="test", timeout_s=30.0) as client, serving(server):
        yield StepBench(api, client, server)
    await api.stop()
