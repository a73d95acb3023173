"""Checks that run when asked: what of a run becomes the node's own verdict."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import httpx2
import pytest

from muster_agent.checks.local_node import LocalNode
from muster_agent.checks.snapshot_check import SnapshotCheck
from muster_agent.checks.state_file import StoredCheck
from muster_agent.findings.ledger import Ledger
from muster_agent.http.routes import make_app
from muster_agent.metrics.agent_metrics import AgentMetrics
from muster_agent.node_agent import Agent
from muster_agent.settings import AgentSettings, check_parameters
from muster_checks.base.declaration import Check, Cost, NodeView, Parameters
from muster_checks.base.vocabulary import Finding, Result, Verdict
from muster_checks.nvidia import KNOWN_GPUS
from muster_checks.registry import load_registry
from muster_kube.nodehealth import AgentIdentity


class Limits(Parameters):
    sends = frozenset({"peers"})
    limit: float = 4.0
    table: Path | None = None
    peers: str = ""


def slow(reason: str = "Slow") -> Finding:
    return Finding(component="gpu/0000:3b:00.0", verdict=Verdict.FAIL, reason=reason, message="slow")


class Bench:
    """A light and two heavy checks; ``found`` is what they find, ``beside`` which ran at the same time."""

    def __init__(self) -> None:
        self.found: Sequence[Finding] = ()
        self.running: set[str] = set()
        self.beside: dict[str, set[str]] = {}
        local = LocalNode(name="node-1", view=NodeView(), boot_id="boot")
        self.checks = [
            SnapshotCheck(self.check(name, cost), Limits(), local, None)
            for name, cost in (("heavy", Cost.HEAVY), ("link", Cost.LIGHT), ("other", Cost.HEAVY))
        ]
        self.agent = Agent(local, self.checks, AgentIdentity(pod_uid="pod-1", version="1"))

    def check(self, name: str, cost: Cost) -> Check:
        async def probe(_node: NodeView, parameters: Limits) -> Sequence[Finding]:
            self.running.add(name)
            for _ in range(5):
                await asyncio.sleep(0)
                self.beside.setdefault(name, set()).update(self.running - {name})
            self.running.discard(name)
            return self.found if parameters.limit == 4.0 else [slow("Stricter")]

        return Check(
            name=name, description="", cost=cost, parameters=Limits, timeout_s=600.0, devices=("gpu",), probe=probe
        )

    def get(self, query: str, client: str = "127.0.0.1") -> "asyncio.Task[httpx2.Response]":
        app = make_app(self.agent, AgentMetrics("node-1", "1"))
        transport = httpx2.ASGITransport(app=app, client=(client, 5000))

        async def ask() -> httpx2.Response:
            async with httpx2.AsyncClient(transport=transport, base_url="http://10.0.0.1:3333") as http:
                return await http.get(f"/status?{query}")

        return asyncio.create_task(ask())

    def published(self) -> dict[str, tuple[str, list[str]]]:
        status = self.agent.desired()
        assert status is not None
        return {check.name: (check.verdict, [finding.reason for finding in check.findings]) for check in status.checks}


async def test_what_has_not_run_is_not_published_and_unknown_in_the_report():
    bench = Bench()
    assert bench.published() == {}
    await bench.get("check=link")
    assert bench.published() == {"link": ("PASS", [])}
    assert bench.checks[0].result().reason == "NotRun"


async def test_a_run_with_other_parameters_answers_but_changes_no_verdict():
    bench = Bench()
    await bench.get("check=link")
    answer = await bench.get("check=link&limit=100&format=json")
    assert answer.json()["nodes"][0]["verdict"] == "FAIL"
    assert bench.published() == {"link": ("PASS", [])}


async def test_a_run_with_other_parameters_closes_nothing():
    bench = Bench()
    bench.found = [slow()]
    await bench.get("check=link")
    bench.found = ()
    await bench.get("check=link&limit=5")
    assert bench.published() == {"link": ("FAIL", ["Slow"])}
    await bench.get("check=link")
    assert bench.published() == {"link": ("PASS", [])}


async def test_heavy_checks_run_one_after_another_and_in_the_order_asked():
    bench = Bench()
    answer = await bench.get("check=heavy,link,other&format=json")
    assert [result["check"] for result in answer.json()["nodes"][0]["results"]] == ["heavy", "link", "other"]
    assert bench.beside == {"heavy": set(), "link": set(), "other": set()}


@pytest.mark.parametrize("client", ["10.0.0.9", "2001:db8::1", "unix"])
async def test_heavy_checks_that_are_named_run_over_loopback_and_for_nobody_else_without_a_right(client: str):
    bench = Bench()
    assert (await bench.get("check=link,heavy", client)).status_code == 401
    assert not bench.beside
    assert (await bench.get("check=link,heavy")).status_code == 200
    assert set(bench.beside) == {"link", "heavy"}


async def test_a_stranger_names_no_files_and_no_targets(tmp_path: Path):
    bench = Bench()
    secret = tmp_path / "secret"
    secret.write_text("password: hunter2")
    answer = await bench.get(f"check=link&table={secret}&peers=x", "10.0.0.9")
    assert (answer.status_code, bench.beside) == (401, {})
    assert "peers, table:" in answer.text
    assert "hunter2" not in answer.text
    assert (await bench.get(f"check=link&table={secret}&peers=x")).status_code == 200


def test_every_shipped_parameter_that_is_a_file_is_guarded():
    guarded = {
        f"{check.name}.{name}" for check in load_registry(plug_ins=[]).values() for name in check.parameters.guarded()
    }
    assert {"dmesg.path", "dmesg.catalogue", "pciebw.expected", "ping.peers", "ipu.vipu_api_host"} <= guarded


def gpu_finding() -> Finding:
    return Finding(component="gpu/0000:5e:00.0", verdict=Verdict.FAIL, reason="GpuMissing", message="gone")


@pytest.mark.parametrize("name", ["gpucount", "gpuecc", "remapped", "nvlink"])
def test_after_a_restart_a_gpu_with_an_open_fault_is_still_one_that_was_there(name: str):
    check = load_registry(plug_ins=[])[name]
    local = LocalNode(name="node-1", view=NodeView(), boot_id="boot")
    ledger = Ledger(name, "boot")
    ledger.take_run(Result(check=name, verdict=Verdict.FAIL, findings=(gpu_finding(),)))
    stored = StoredCheck(ledger=ledger.memory())
    SnapshotCheck(check, check.parameters(), local, stored)
    assert list(local.view.history.of(KNOWN_GPUS)) == ["0000:5e:00.0"]


def test_what_the_cluster_remembers_counts_where_the_state_was_lost():
    check = load_registry(plug_ins=[])["gpucount"]
    local = LocalNode(name="node-1", view=NodeView(), boot_id="boot")
    running = SnapshotCheck(check, check.parameters(), local, None)
    ledger = Ledger("gpucount", "boot")
    ledger.take_run(Result(check="gpucount", verdict=Verdict.FAIL, findings=(gpu_finding(),)))
    running.start_over(ledger)
    assert list(local.view.history.of(KNOWN_GPUS)) == ["0000:5e:00.0"]


@pytest.mark.parametrize("name", sorted(name for name, check in load_registry(plug_ins=[]).items() if check.enabled))
def test_defaults_that_were_not_validated_equal_those_that_were(name: str):
    check = load_registry(plug_ins=[])[name]
    (chosen,) = [each for own, each in check_parameters(AgentSettings(node="n"), {name: check}).items() if own == name]
    assert chosen == check.parameters.model_validate({})
