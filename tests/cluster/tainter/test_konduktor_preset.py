"""examples/konduktor-without-loki.yaml: the agents' reports are all that a cluster without Loki has."""

from pathlib import Path
from typing import Any

import pytest
from tests.cluster.tainter import test_end_to_end as end_to_end
from tests.cluster.tainter.test_end_to_end import HEALTHS, Cluster, Replica, Tainters, until

from muster_sandbox.simulation.nodes import SimulatedNodes

tainters, cluster = end_to_end.tainters, end_to_end.cluster  # fixtures
PRESET = Path(__file__).parents[3] / "examples/konduktor-without-loki.yaml"
TAINT = {"key": "trainy.konduktor.ai/faulty", "value": "true", "effect": "NoSchedule"}


def report(check: str, reason: str, verdict: str, boot: str = "boot-1") -> dict[str, Any]:
    """A NodeHealth's status, as an agent writes it. boot: the finding is of boot-1; in another one it has not fired"""
    found = {"component": "gpu/0000:3b:00.0", "reason": reason, "verdict": verdict, "occurrence": 1, "count": 1}
    findings = [found] if boot == "boot-1" else []
    checks = [{"name": check, "verdict": verdict if findings else "PASS", "findings": findings}]
    return {"verdict": checks[0]["verdict"], "bootID": boot, "checks": checks, "observedAt": "2026-01-01T00:00:01.000Z"}


@pytest.mark.parametrize(
    ("check", "reason", "verdict", "taints"),
    [
        ("dmesg", "Xid31", "FAIL", True),
        ("dmesg", "Xid14", "WARN", True),
        ("dmesg", "SXid12028", "WARN", True),
        ("dmesg", "PeermemInvalidContext", "WARN", True),
        ("containerlog", "InvalidDeviceOrdinal", "WARN", True),
        ("containerlog", "CudaOutOfMemory", "WARN", False),
        ("dmesg", "OutOfMemory", "FAIL", False),
        ("pciebw", "SlowLink", "FAIL", False),
    ],
)
async def test_what_konduktor_taints_for_is_tainted_and_no_reboot_ends_it(
    tainters: Tainters, fleet: SimulatedNodes, cluster: Cluster, check: str, reason: str, verdict: str, taints: bool
) -> None:
    replica = await tainters.start("--policy", str(PRESET))
    node, *others = await fleet.create(3, prefix="konduktor")
    for boot, other in zip(("boot-1", "boot-2"), others, strict=True):
        await written(cluster, node, report(check, reason, verdict, boot))
        await until(lambda boot=boot: logged(replica, node, boot), f"the report of {boot} is read")
        # who comes after it has been dealt with
        await written(cluster, other, report("dmesg", "Xid79", "FAIL"))
        await until(lambda other=other: is_tainted(cluster, other), f"{other} is tainted")
        if taints and boot == "boot-1":
            await until(lambda: is_tainted(cluster, node), f"{node} is tainted")
        assert await is_tainted(cluster, node) is taints


async def written(cluster: Cluster, node: str, status: dict[str, Any]) -> None:
    """Once the tainter has made the NodeHealth."""

    async def patched() -> bool:
        await cluster.api.patch(f"{HEALTHS}/{node}/status", {"status": status})
        return True

    await until(patched, f"the NodeHealth of {node} takes a status")


async def logged(replica: Replica, node: str, boot: str) -> bool:
    return replica.logged(f'"node": "{node}"', f'"bootID": "{boot}"') > 0


async def is_tainted(cluster: Cluster, node: str) -> bool:
    return TAINT in await cluster.taints(node)
