"""500 faults that wait when the tainter starts, beside what the API server gives a bare client in the same run."""

import asyncio
import os
import re
import sys
import time
from datetime import datetime
from pathlib import Path
from typing import Any

from muster_kube.client import KubeClient
from muster_kube.config import load_config
from muster_tainter.controller import URGENT_WORKERS
from muster_testbed.nodes import each

NODES = 500
FAULTS = 500
HEALTHS = "/apis/muster.dev/v1alpha1/nodehealths"
FINDING = {
    "component": "gpu/0000:3b:00.0", "reason": "Xid79", "verdict": "FAIL", "class": "reboot", "occurrence": 1,
    "message": "NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.", "firstSeen": "2026-01-01T00:00:00.000Z",
}  # fmt: skip
TAINTED = re.compile(r"^(\S+) WARNING Node (\S+) tainted:")


async def bare_rate(kubeconfig: Path, names: list[str]) -> float:
    """PATCHes a second of a client that does nothing else, with as many at once as the tainter."""
    async with KubeClient(load_config(kubeconfig), max_connections=28, timeout_s=60.0) as client:

        async def patch(name: str) -> None:
            body = {
                "metadata": {
                    "labels": {"bare/faulty": "true"},
                    "annotations": {"bare/faults": "x" * 400},
                },
                "spec": {"taints": [{"key": "bare/faulty", "effect": "NoSchedule", "value": "true"}]},
            }
            await client.patch(f"/api/v1/nodes/{name}", body)

        started = time.monotonic()
        await each(names, patch, concurrency=URGENT_WORKERS)
        return len(names) / (time.monotonic() - started)


async def test_a_burst_goes_out_nearly_as_fast_as_the_server_takes_it(
    control_plane: Any, fleet: Any, api: KubeClient, tmp_path: Path
) -> None:
    bare = await fleet.create(NODES, prefix="bare")
    names = await fleet.create(FAULTS, prefix="burst")

    async def report(name: str) -> None:
        await api.create(
            HEALTHS, {"apiVersion": "muster.dev/v1alpha1", "kind": "NodeHealth", "metadata": {"name": name}}
        )
        status = {
            "verdict": "FAIL",
            "bootID": "b",
            "checks": [{"name": "dmesg", "verdict": "FAIL", "findings": [FINDING]}],
        }
        await api.patch(f"{HEALTHS}/{name}/status", {"status": status})

    await each(names, report)
    kubeconfig = control_plane.kubeconfig_for("muster-tainter", "muster")
    floor = await bare_rate(kubeconfig, bare)
    policy = tmp_path / "policy.yaml"
    policy.write_text("rules: [{name: hardware, match: {class: [reboot]}, action: taint}]")  # no pools: no budget
    log = tmp_path / "log"
    with log.open("wb") as errors:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "muster_tainter", "--kubeconfig", str(kubeconfig), "--namespace", "muster",
            "--host", "127.0.0.1", "--port", "0", "--policy", str(policy),
            stdout=asyncio.subprocess.DEVNULL, stderr=errors,
        )  # fmt: skip
    try:
        deadline = time.monotonic() + 240  # takes three seconds: this guards against hanging
        while time.monotonic() < deadline:
            hits = [m for m in map(TAINTED.match, log.read_text().splitlines()) if m]
            if {m.group(2) for m in hits} >= set(names):
                break
            await asyncio.sleep(1.0)
        assert {m.group(2) for m in hits} == set(names)
        first: dict[str, float] = {}  # a taint that another controller overwrites comes again later
        for hit in hits:
            first.setdefault(hit.group(2), datetime.fromisoformat(hit.group(1)).timestamp())
        rate = (FAULTS - 1) / (max(first.values()) - min(first.values()))
        print(f"\nburst {rate:.0f}/s, bare client {floor:.0f}/s, ratio {rate / floor:.2f}")
    finally:
        process.terminate()
        await process.wait()
    # elsewhere the two are measured seconds apart on a machine whose load may have changed: the figure is a benchmark's
    if os.environ.get("MUSTER_BENCH") == "1":
        assert rate >= 0.8 * floor
