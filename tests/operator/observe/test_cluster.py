"""Whose objects a job's are: those that it controls, in its own namespace."""

import asyncio
import json
from typing import Any

from tests.kube.conftest import Stream
from tests.operator.operator_bench import NS, a_job, bench_around, job_object, pod_object, until

from muster_operator.snapshot_reader import SnapshotReader


async def test_a_copy_of_a_pod_in_another_namespace_does_not_replace_the_jobs_pod() -> None:
    """With the right to create pods in another namespace, a user can give them any owner reference."""
    name = "train-worker-0"
    copy: dict[str, Any] = pod_object(name, uid="copy", namespace="elsewhere")
    copy["status"] = {"phase": "Failed"}
    other = pod_object("another", uid="another", namespace="elsewhere")

    def event(kind: str, version: int, pod: dict[str, Any]) -> bytes:
        made = pod | {"metadata": pod["metadata"] | {"resourceVersion": str(version)}}
        return json.dumps({"type": kind, "object": made}).encode() + b"\n"

    async with bench_around() as bench:
        bench.lists(ipujobs=[job_object()], pods=[pod_object(name)])
        events = [event("ADDED", 20, copy), event("ADDED", 21, other)]
        bench.api.on("WATCH", "/api/v1/pods", Stream(tuple(events), then="end"),
                     Stream((event("DELETED", 22, copy),)))  # fmt: skip
        reader = SnapshotReader(bench.cluster, bench.refusals, lambda: 0.0)
        seen: list[set[str]] = []
        watching = asyncio.create_task(bench.cluster.watch())
        store = bench.cluster.reflectors()["pods"].store
        await until(lambda: f"{NS}/{name}" in store)
        for condition in (lambda: "elsewhere/another" in store, lambda: "elsewhere/train-worker-0" not in store):
            await until(condition)
            seen.append({pod.metadata.uid for pod in reader.read(a_job()).pods.values()})
        assert seen == [{f"pod-{name}"}] * 2
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
