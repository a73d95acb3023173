"""The proofs' edge: what is written, when answers of the server are lost, and when it says no."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from tests.kube.conftest import Asked, Drop, FakeApi, Reply, Wire
from tests.tainter.fake_fleet import FakeFleet
from tests.tainter.verification.proved_node import COSTS, ProvedNode

from muster_kube.api.client import KubeClient
from muster_kube.api.config import ClusterConfig
from muster_kube.api.objects import Node
from muster_kube.nodehealth import PATH, CheckRequest, NodeHealth
from muster_tainter.faults.record.verification_attempts import ANNOTATION
from muster_tainter.fleet.replica import Replica
from muster_tainter.metrics import TainterMetrics
from muster_tainter.policy.recovery import MANAGER
from muster_tainter.verification.verifier import Verifier, is_heavy

POLICY = """
rules: [{name: all, action: taint, proof: {retry: 10m}}]
holdDown: {base: 60s}
testing: {atOnce: 1}
"""
LABEL = "muster.dev/proving"
EMPTY = Reply(200, {"kind": "List", "metadata": {"resourceVersion": "1"}, "items": []})
THEIRS = CheckRequest(id="ann-1", checks=("dcgm",), params={"dcgm.level": "2"}, by="ann")


class ProvedFleet(FakeFleet):
    """Each node as its own model has it."""

    proved: dict[str, ProvedNode]

    def node(self, name: str) -> Node | None:
        return self.proved[name].node

    def health_of(self, name: str) -> NodeHealth:
        return self.proved[name].health


class Bench:
    """A verifier over a few faulty nodes, and the API server that it writes to."""

    def __init__(self, api: FakeApi, client: KubeClient, names: list[str], check: str) -> None:
        self.api = api
        self.nodes: dict[str, ProvedNode] = {}
        self.metrics = TainterMetrics()
        self.leads = True
        self.idle = asyncio.Event()
        self.idle.set()
        api.on("GET", PATH, EMPTY)
        for name in names:
            node = self.nodes[name] = ProvedNode(POLICY, name)
            node.fails(check)
            node.decide()
            node.now += 61.0
            api.on("PATCH", f"{PATH}/{name}", self.take)
        fleet = ProvedFleet(
            self.nodes[names[0]].policy,
            healths={name: node.health for name, node in self.nodes.items()},
            observe_health=self.observe,
            taints_idle=self.idle,
        )
        fleet.proved = self.nodes
        self.notices = fleet.notices
        replica = Replica(may_write=lambda: self.leads, now=lambda: self.nodes[names[0]].now)
        self.verifier = Verifier(client, fleet, replica, self.metrics, costs=COSTS, interval_s=0.001)

    def observe(self, health: NodeHealth) -> None:
        self.nodes[health.metadata.name].health = health
        self.verifier.note(health.metadata.name)

    def taken(self, asked: Asked) -> NodeHealth:
        """The object as the server has it after a write."""
        body = json.loads(asked.body)
        known = self.nodes[asked.path.rpartition("/")[2]].health
        raw = msgspec.to_builtins(known)
        spec = body.get("spec") or {}
        if asked.headers["content-type"].startswith("application/apply"):
            others = [each for each in raw.get("spec", {}).get("requests", []) if each.get("by") != MANAGER]
            raw.setdefault("spec", {})["requests"] = [*others, *spec.get("requests", [])]
        else:
            for field, value in spec.items():
                raw.setdefault("spec", {})[field] = value or []
        changed = body["metadata"].get("annotations", {})
        annotations = raw["metadata"].get("annotations", {}) | changed
        raw["metadata"]["annotations"] = {key: value for key, value in annotations.items() if value is not None}
        raw["metadata"]["resourceVersion"] = str(int(known.metadata.resource_version) + 1)
        return msgspec.convert(raw, NodeHealth)

    def take(self, asked: Asked) -> Reply:
        return Reply(200, msgspec.to_builtins(self.taken(asked)))

    def answer(self, name: str, verdict: str, reason: str = "") -> None:
        self.nodes[name].answer(verdict, reason)
        self.nodes[name].decide()
        self.verifier.note(name)

    def writes(self) -> list[tuple[str, dict[str, Any]]]:
        return [(asked.path.rpartition("/")[2], json.loads(asked.body)) for asked in self.api.asked_for("PATCH")]

    def asked(self, name: str) -> list[CheckRequest]:
        return self.nodes[name].asked()

    def value(self, name: str, **labels: str) -> float:
        return self.metrics.registry.get_sample_value(name, labels) or 0.0

    async def until(self, condition: Any) -> None:
        await Wire.until(condition)


@pytest.fixture
async def bench() -> AsyncIterator[Any]:
    api = FakeApi()
    await api.start()
    running: list[asyncio.Task[None]] = []
    async with KubeClient(
        ClusterConfig(origin="test", server=f"http://127.0.0.1:{api.port}"), timeout_s=30.0
    ) as client:

        def start(*names: str, check: str = "pciebw", run: bool = True) -> Bench:
            made = Bench(api, client, list(names), check)
            if run:
                running.append(asyncio.create_task(made.verifier.run()))
            return made

        def go(made: Bench) -> asyncio.Task[None]:
            running.append(asyncio.create_task(made.verifier.run()))
            return running[-1]

        start.go = go  # type: ignore[attr-defined]
        yield start
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
    await api.stop()


async def test_a_proof_is_applied_by_a_manager_of_its_own_on_the_version_it_was_decided_on(bench: Any) -> None:
    b = bench("n1")
    version = b.nodes["n1"].health.metadata.resource_version
    await b.until(lambda: b.asked("n1"))
    [(_, body)] = b.writes()
    [request] = body["spec"]["requests"]
    assert body["metadata"] == {"name": "n1", "uid": "u", "resourceVersion": version, "labels": {LABEL: "true"}}
    assert (request["checks"], request["by"], set(request)) == (
        ["pciebw"], MANAGER, {"id", "checks", "by", "expires", "params"}
    )  # fmt: skip
    [asked] = b.api.asked_for("PATCH")
    assert asked.query == {"fieldManager": MANAGER, "force": "true"}
    assert asked.headers["content-type"] == "application/apply-patch+yaml"
    await b.until(lambda: b.value("muster_tainter_writes_total", what="proof") == 1)


async def test_the_passed_request_is_deleted_and_the_finding_cleared_in_one_write(bench: Any) -> None:
    b = bench("n1", run=False)
    b.nodes["n1"].asks_too(THEIRS)
    bench.go(b)
    await b.until(lambda: b.asked("n1"))
    b.answer("n1", "PASS")
    await b.until(lambda: len(b.writes()) == 2)
    body = b.writes()[1][1]
    assert body["spec"]["requests"] == [json.loads(msgspec.json.encode(THEIRS))]
    assert [(clear["check"], clear["occurrence"]) for clear in body["spec"]["clear"]] == [("pciebw", 1)]
    assert body["metadata"]["labels"] == {LABEL: None}
    assert body["metadata"]["annotations"] == {ANNOTATION: None}


async def test_what_failed_is_remembered_where_the_request_is_deleted_and_told(bench: Any) -> None:
    b = bench("n1")
    await b.until(lambda: b.asked("n1"))
    b.answer("n1", "FAIL", "SlowPcie")
    await b.until(lambda: len(b.writes()) == 2)
    body = b.writes()[1][1]
    assert body["spec"] == {"requests": None}
    [tried] = json.loads(body["metadata"]["annotations"][ANNOTATION]).values()
    assert (tried["tries"], tried["said"]) == (1, "FAIL SlowPcie")
    await b.until(lambda: b.notices)
    [(name, notice)] = b.notices
    assert (name, notice.reason) == ("n1", "ProofNotPassed")
    for fact in ("pciebw", "FAIL SlowPcie", "2027-"):
        assert fact in notice.message


async def test_it_is_asked_again_when_the_pause_is_over_and_by_whoever_leads_then(bench: Any) -> None:
    b = bench("n1", run=False)
    first = bench.go(b)
    await b.until(lambda: b.asked("n1"))
    b.answer("n1", "FAIL")
    await b.until(lambda: len(b.writes()) == 2 and not b.asked("n1"))
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    b.nodes["n1"].now += 601.0
    bench.go(b)
    await b.until(lambda: b.asked("n1"))
    assert len(b.writes()) == 3


async def test_heavy_proofs_take_turns(bench: Any) -> None:
    b = bench("n1", "n2", "n3")
    await b.until(lambda: any(b.asked(name) for name in b.nodes))
    for number in range(3):
        [name] = [name for name in b.nodes if b.asked(name)]
        b.answer(name, "PASS")
        await b.until(lambda name=name: not b.asked(name))
        if number < 2:
            await b.until(lambda: any(b.asked(name) for name in b.nodes))
            assert len([name for name in b.nodes if b.asked(name)]) == 1


async def test_light_proofs_do_not(bench: Any) -> None:
    b = bench("n1", "n2", "n3", check="remapped")
    await b.until(lambda: all(b.asked(name) for name in b.nodes))


async def test_a_write_whose_answer_is_lost_keeps_its_place(bench: Any) -> None:
    b = bench("n1", "n2", run=False)
    b.api.on("PATCH", f"{PATH}/n1", Drop())
    bench.go(b)
    await b.until(b.writes)
    for _ in range(3):  # rounds later the second node still has to wait: the first one may have been asked
        b.verifier.note("n2")
        await b.until(lambda: not b.verifier.rounds.changed)
    assert {name for name, _ in b.writes()} == {"n1"}
    b.nodes["n1"].now += 61.0  # the watch would have told by now
    b.api.on("PATCH", f"{PATH}/n1", b.take)
    await b.until(lambda: b.verifier.note("n2") or b.asked("n1"))


@pytest.mark.parametrize("status", [403, 422, 429, 500])
async def test_a_server_that_says_no_is_asked_again_later(bench: Any, status: int) -> None:
    b = bench("n1", run=False)
    no = Reply(status, {"kind": "Status", "reason": "Forbidden" if status == 403 else "Nope", "message": "no"})
    b.api.on("PATCH", f"{PATH}/n1", no, b.take)
    bench.go(b)
    await b.until(b.writes)
    if status in (422, 500):
        await b.until(lambda: b.value("muster_tainter_write_errors_total", what="proof", reason="Nope"))
        b.nodes["n1"].now += 61.0
    await b.until(lambda: b.verifier.note("n1") or b.asked("n1"))


async def test_a_node_that_takes_no_request_holds_up_no_other(bench: Any) -> None:
    b = bench("n1", "n2", run=False)  # both have waited equally long, and there is one place: n1 comes first
    full = {"kind": "Status", "reason": "Invalid", "message": "spec.requests: Too many: 17: must have at most 16 items"}
    b.api.on("PATCH", f"{PATH}/n1", Reply(422, full))
    bench.go(b)
    await b.until(lambda: b.verifier.note("n1") or b.asked("n2"))
    assert [name for name, _ in b.writes()] == ["n1", "n2"]


async def test_what_was_decided_on_an_older_version_is_decided_again(bench: Any) -> None:
    b = bench("n1", run=False)
    conflict = Reply(409, {"kind": "Status", "reason": "Conflict", "message": "modified"})
    b.api.on("PATCH", f"{PATH}/n1", conflict, b.take)
    bench.go(b)
    await b.until(b.writes)
    node = b.nodes["n1"]
    node.change()
    b.verifier.note("n1")
    await b.until(lambda: b.asked("n1"))
    assert b.writes()[-1][1]["metadata"]["resourceVersion"] == str(int(node.health.metadata.resource_version) - 1)


async def test_a_new_leader_sees_what_was_asked_before_it_asks(bench: Any) -> None:
    b = bench("n1", "n2", run=False)
    other = b.nodes["n2"]
    before = other.health
    other.ask(other.prove())
    known = msgspec.to_builtins(other.health)
    other.health = before  # it has not come by the watch
    page = Reply(200, {"metadata": {"resourceVersion": "9"}, "items": [known]})
    b.api.on("GET", PATH, Reply(500, {}), page)
    bench.go(b)
    await b.until(lambda: b.asked("n2"))
    await b.until(lambda: not b.verifier.rounds.changed)
    assert b.api.asked_for("GET", PATH)[0].query == {"labelSelector": LABEL}
    assert b.writes() == []


async def test_who_no_longer_leads_writes_nothing(bench: Any) -> None:
    b = bench("n1", run=False)
    b.leads = False
    bench.go(b)
    await b.until(lambda: b.verifier._plans)
    b.verifier.note("n1")
    await b.until(lambda: not b.verifier.rounds.changed)
    assert b.writes() == []


async def test_a_write_under_way_is_waited_for_at_the_end(bench: Any) -> None:
    b = bench("n1", run=False)
    b.api.on("PATCH", f"{PATH}/n1", lambda asked: Reply(200, msgspec.to_builtins(b.taken(asked)), trickle_s=0.0005))
    running = bench.go(b)
    await b.until(b.writes)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert b.asked("n1")


async def test_taints_go_first(bench: Any) -> None:
    b = bench("n1", run=False)
    b.idle.clear()
    bench.go(b)
    await b.until(lambda: b.api.asked_for("GET", PATH))
    assert b.writes() == []
    b.idle.set()
    await b.until(lambda: b.asked("n1"))


async def test_a_node_without_a_fault_costs_nothing(bench: Any) -> None:
    b = bench("n1", run=False)
    node = b.nodes["n1"]
    assert node.node is not None
    metadata = msgspec.structs.replace(node.node.metadata, annotations={})
    node.node = msgspec.structs.replace(node.node, metadata=metadata)
    bench.go(b)
    b.verifier.note("n1")
    await b.until(lambda: b.api.asked_for("GET", PATH) and not b.verifier.rounds.changed)
    assert b.verifier._plans == {}
    assert b.writes() == []


def test_what_a_check_costs_is_its_declaration_s_word_and_a_plug_in_may_be_heavy() -> None:
    assert is_heavy("dcgm")
    assert not is_heavy("remapped")
    assert is_heavy("burnin")
