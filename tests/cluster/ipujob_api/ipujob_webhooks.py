"""IPUJobs on a real API server: kubectl as people call it, and the operator's webhooks, which it really asks.

The webhooks run in the test's own process, over real HTTPS on loopback, with certificates of their own making.
"""

import asyncio
import copy
import os
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from tests.machine import require
from tests.polling import pause_s

from muster_kube.api.client import KubeClient
from muster_kube.api.config import load_config
from muster_kube.api.errors import ApiError, NotFound
from muster_kube.webhook.certificate_secret import mutating_webhook_path, validating_webhook_path
from muster_operator.admission.configurations import MUTATE_PATH, VALIDATE_PATH, WebhookAddress, webhook_configurations
from muster_operator.admission.server import WebhookEndpoint, prepare_webhooks
from muster_operator.job.types import API_VERSION, KIND, jobs_path
from muster_sandbox.controlplane.cluster import ControlPlane
from muster_sandbox.controlplane.install import NAMESPACE

SAMPLES = Path(__file__).parents[2] / "operator" / "samples"
NAME = "ipujob-test"
CONFIGURATIONS = (mutating_webhook_path(NAME), validating_webhook_path(NAME))
NOBODY = "https://127.0.0.1:1"
WAIT_S = 120.0
MINOR = 20  # of the API server that is built here; what a newer one is told instead is tested without one
Object = dict[str, Any]


async def until(ask: Callable[[], Awaitable[Any]], what: str) -> Any:
    """What ``ask`` returns once that is true; an error of the server counts as not yet."""
    begun = time.monotonic()
    last: object = None
    with suppress(TimeoutError):
        async with asyncio.timeout(WAIT_S):
            while True:
                try:
                    last = await ask()
                except ApiError as error:
                    last = error
                if last and not isinstance(last, Exception):
                    return last
                await asyncio.sleep(pause_s(begun))
    raise AssertionError(f"not within {WAIT_S} s: {what}; last: {last!r}")


def job(name: str, **spec: Any) -> Object:
    """An IPUJob of the least that is allowed, with ``spec`` over it; None takes a field away."""
    template = {"spec": {"containers": [{"name": "main", "image": "main:1"}]}}
    least = {"jobInstances": 1, "ipusPerJobInstance": "2", "workers": {"template": template}}
    whole = {key: copy.deepcopy(value) for key, value in (least | spec).items() if value is not None}
    return {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": name}, "spec": whole}


@dataclass(frozen=True)
class Said:
    """What a program printed, and how it ended."""

    code: int
    out: str
    err: str


@dataclass(frozen=True)
class Kubectl:
    """The real one, with an administrator's rights. cache: of its own, as ports are used again by other servers."""

    kubeconfig: Path
    cache: Path

    async def __call__(self, *words: str, namespace: str = "default", stdin: str = "") -> Said:
        process = await asyncio.create_subprocess_exec(
            "kubectl", "--kubeconfig", str(self.kubeconfig), "--cache-dir", str(self.cache), "-n", namespace, *words,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
            env={"PATH": os.environ["PATH"], "HOME": str(self.cache)},
        )  # fmt: skip
        out, err = await process.communicate(stdin.encode())
        assert process.returncode is not None
        return Said(process.returncode, out.decode(), err.decode())

    async def fine(self, *words: str, namespace: str = "default", stdin: str = "") -> Said:
        said = await self(*words, namespace=namespace, stdin=stdin)
        assert said.code == 0, f"kubectl {' '.join(words)}: {said.out}{said.err}"
        return said


@pytest.fixture
def kubectl(kubeconfig: Path, tmp_path: Path) -> Kubectl:
    require("kubectl")
    cache = tmp_path / "kubectl"
    cache.mkdir()
    return Kubectl(kubeconfig, cache)


@dataclass
class Served:
    """The webhooks, and the configurations that name them."""

    api: KubeClient
    plane: ControlPlane
    registry: CollectorRegistry = field(default_factory=CollectorRegistry)

    async def answers(self, namespace: str) -> bool:
        """Whether a bad job is refused by the webhooks: it stands with the schema."""
        return "admission webhook" in await refused(self.api, namespace, job("probe", ipusPerJobInstance="3"))

    async def point(self, url: str) -> None:
        """Both configurations, at ``url``."""
        for path, at in zip(CONFIGURATIONS, (MUTATE_PATH, VALIDATE_PATH), strict=True):
            found = await self.api.get(path)
            webhooks = [{"name": each["name"], "clientConfig": {"url": url + at}} for each in found["webhooks"]]
            await self.api.patch(path, {"webhooks": webhooks}, kind="strategic")

    async def pointed(self, capsys: pytest.CaptureFixture[str]) -> bool:
        """At the address that was printed last, if any was."""
        if url := free_url(capsys):
            await self.point(url)
        return bool(url)

    async def trusted(self) -> bool:
        found = [await self.api.get(path) for path in CONFIGURATIONS]
        return all(each["clientConfig"].get("caBundle") for one in found for each in one["webhooks"])


async def refused(api: KubeClient, namespace: str, body: Object) -> str:
    """Why a job would be refused; empty where it would not be. Nothing is stored."""
    try:
        await api.create(jobs_path(namespace), body, params={"dryRun": "All"})
    except ApiError as error:
        return error.message
    return ""


@asynccontextmanager
async def configured(api: KubeClient, namespace: str) -> AsyncIterator[None]:
    """Both configurations, at an address where nobody answers; they are out of force afterwards."""
    made = webhook_configurations(NAME, WebhookAddress(url=NOBODY), minor=MINOR, timeout_s=30)
    try:
        for path, body in zip(CONFIGURATIONS, made, strict=True):
            await api.create(path.rpartition("/")[0], body)
        yield
    finally:
        for path in CONFIGURATIONS:
            with suppress(NotFound):
                await api.delete(path)

        async def gone() -> bool:
            return await refused(api, namespace, job("probe", ipusPerJobInstance="3")) == ""

        await until(gone, "the webhooks are asked no more")  # else they would meet the next test
        with suppress(NotFound):
            await api.delete(f"/api/v1/namespaces/{NAMESPACE}/secrets/{NAME}")


@asynccontextmanager
async def running(
    place: WebhookEndpoint, plane: ControlPlane, registry: CollectorRegistry
) -> AsyncIterator[asyncio.Task[None]]:
    async with prepare_webhooks(place, load_config(plane.kubeconfig), "muster-operator", registry) as serving:
        task = asyncio.create_task(serving)
        try:
            yield task
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


def free_url(capsys: pytest.CaptureFixture[str]) -> str:
    """The address that was printed last."""
    lines = [line for line in capsys.readouterr().out.splitlines() if re.search(r" on \S+:\d+$", line)]
    return f"https://{lines[-1].split()[-1]}" if lines else ""


@pytest.fixture
async def webhooks(
    control_plane: ControlPlane, api: KubeClient, namespace: str, capsys: pytest.CaptureFixture[str]
) -> AsyncIterator[Served]:
    """In force: the real server's, by both configurations."""
    served = Served(api, control_plane)
    place = WebhookEndpoint(NAMESPACE, host="127.0.0.1", port=0, name=NAME)
    async with configured(api, namespace), running(place, control_plane, served.registry):
        await until(served.trusted, "the certificate is trusted")
        await served.point(free_url(capsys))
        await until(lambda: served.answers(namespace), "the webhooks are in force")
        yield served
