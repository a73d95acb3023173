"""What the ledger makes of Nodes and of the list and watch of pods."""

import asyncio
import json
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from tests.kube.conftest import FakeApi, Reply, Stream, Wire
from tests.tainter.fake_fleet import FakeFleet
from tests.tainter.goodput.ledger_bed import advance, booked, interruptions
from tests.tainter.outcomes.pod_objects import GPU_LOST, NOW, pod_object

from muster_kube.api.client import KubeClient
from muster_kube.api.config import ClusterConfig
from muster_kube.api.objects import Metadata, Node, NodeStatus
from muster_tainter.fleet.replica import Replica
from muster_tainter.goodput.books import OTHER, PLACES_OF_NODE, Place
from muster_tainter.goodput.causes import Cause
from muster_tainter.goodput.feed import NO_POOL, BookKeeper
from muster_tainter.goodput.ledger import Ledger
from muster_tainter.goodput.metrics import GoodputMetrics
from muster_tainter.goodput.pods.pod_facts import PATH
from muster_tainter.policy.file import parse_policy
from muster_tainter.settings import ACCELERATORS

MODEL = "nvidia.com/gpu.product"


def node(name: str = "n1", gpus: int = 8, model: str = "H100") -> Node:
    devices = {"nvidia.com/gpu": str(gpus)}
    status = NodeStatus(capacity={"nvidia.com/gpu": "8"}, allocatable=devices)
    return Node(metadata=Metadata(name=name, labels={MODEL: model}), status=status)


def rejected(**fields: Any) -> dict[str, Any]:
    """A pod whose devices its node could not allocate."""
    failed: dict[str, Any] = {"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": GPU_LOST, "gpus": 1}
    return pod_object("p", created=NOW, bound=NOW + 1, **failed | fields)


class Leader:
    """The keeper of books that begin before NOW; then it is later. nodes: what it knows of them."""

    def __init__(self, client: Any, *nodes: Node) -> None:
        self.nodes = {each.metadata.name: each for each in nodes}
        policy = parse_policy("rules: []\ngoodput: {}\n")
        assert policy.goodput is not None
        fleet = FakeFleet(current=policy, nodes=self.nodes)
        replica = Replica(may_write=lambda: False, now=lambda: NOW + (100 if self.keeper.ledger else -100))
        metrics = GoodputMetrics(CollectorRegistry())
        self.keeper = BookKeeper(client, fleet, replica, metrics, policy.goodput, ACCELERATORS)

    def look(self) -> None:
        """At all nodes."""
        self.keeper.look_at_all()
        self.keeper.take_nodes(self.ledger)

    @property
    def ledger(self) -> Ledger:
        assert self.keeper.ledger is not None
        return self.keeper.ledger


async def read(of: Node, *, listed: list[dict[str, Any]], watched: list[dict[str, Any]]) -> Ledger:
    """The books after all of these pods."""
    api = FakeApi()
    await api.start()
    lines = tuple(json.dumps({"type": "ADDED", "object": each}).encode() + b"\n" for each in watched)
    api.on("GET", PATH, Reply(body={"kind": "PodList", "metadata": {"resourceVersion": "9"}, "items": listed}))
    api.on("WATCH", PATH, Stream(lines=lines))
    config = ClusterConfig(origin="test", server=f"http://127.0.0.1:{api.port}")
    async with KubeClient(config, timeout_s=30.0) as client:
        leader = Leader(client, of)
        running = asyncio.create_task(leader.keeper.run())
        await Wire.until(lambda: leader.keeper.ledger is not None and len(leader.ledger.pods) > 0)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    await api.stop()
    advance(leader.ledger, NOW + 1000)
    return leader.ledger


@pytest.mark.parametrize(
    ("of", "pod", "cause"),
    [
        (node(), rejected(), Cause.FAULT),
        (node(), rejected(owner=None), Cause.FAULT),
        # its device plug-in restarts
        (node(gpus=0), rejected(owner=None), Cause.USER),
        (node(gpus=4), rejected(gpus=5), Cause.USER),
        (node("n2"), rejected(), Cause.USER),
        (node(), rejected(owner=("Node", "n1")), Cause.USER),
        (node(), rejected(message="Pod was rejected: Allocate failed due to rpc error"), Cause.USER),
    ],
)
async def test_a_rejection_counts_against_a_node_that_offers_the_devices(
    of: Node, pod: dict[str, Any], cause: Cause
) -> None:
    books = await read(of, listed=[], watched=[pod])
    against = {cause: 1.0} if cause is Cause.FAULT else {}
    assert interruptions(books) == against
    assert list(books.lemons.all()) == ["n1"][: len(against)]


async def test_what_a_node_offers_now_says_nothing_about_a_pod_that_was_listed() -> None:
    books = await read(node(), listed=[rejected()], watched=[])
    assert set(booked(books)) <= {Cause.USER}
    assert interruptions(books) == {}


def test_a_node_that_changes_its_model_leaves_room_for_the_models_of_others() -> None:
    leader = Leader(None, node("liar"))
    leader.keeper.ledger = Ledger(3600.0, NOW)
    books = leader.ledger.books
    for number in range(100):
        leader.nodes["liar"] = node("liar", model=f"M{number}")
        leader.look()
    leader.nodes |= {f"n{number}": node(f"n{number}", model=f"H{number}") for number in range(40)}
    leader.look()
    assert Place(NO_POOL, "H39") in books.places
    assert [place.model[0] for place in books.places].count("M") == PLACES_OF_NODE
    assert Place(OTHER, OTHER) in books.places
    # a model that is known, from whichever node, is never refused
    leader.nodes["liar"] = node("liar", model="H7")
    leader.look()
    advance(leader.ledger, NOW + 200)
    [row] = [row for bucket in books.buckets() for place, row in bucket.rows.items() if place.model == "H7"]
    assert row["nodes"] == 2 * 100
