"""A new leader knows the taints that the one before it set last, however far its watch is behind."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from muster_kube.api.errors import NotFound, TooManyRequests
from muster_kube.api.list_decoder import ListPage
from muster_kube.api.objects import Metadata, Node, NodeSpec, Taint
from muster_kube.controller.clock import Clock
from muster_tainter.faults.desired_state import FAULTY_LABEL
from muster_tainter.fleet.watched_fleet import WatchedFleet
from muster_tainter.policy.file import parse_policy

OURS = Taint(key="muster.dev/faulty", value="true", effect="NoSchedule")
OLD = Node(metadata=Metadata(name="n1", uid="u", resource_version="5"))
NEW = Node(
    metadata=Metadata(name="n1", uid="u", resource_version="9", labels={FAULTY_LABEL: "true"}),
    spec=NodeSpec(taints=(OURS,)),
)


RELEASED = Node(
    metadata=Metadata(name="n2", uid="v", resource_version="6", labels={FAULTY_LABEL: "true"}),
    spec=NodeSpec(taints=(OURS,)),
)
GONE = Node(metadata=Metadata(name="n3", uid="w", resource_version="6", labels={FAULTY_LABEL: "true"}))


class Server:
    """Its watch never delivers anything: not the taint of n1, the release of n2 and the end of n3. refuses: how many
    lists of tainted nodes fail."""

    def __init__(self) -> None:
        self.refuses = 1
        self.asked: list[Any] = []
        self.timeouts_s: list[float] = []

    async def list_pages(self, path: str, _type: object, **_: object) -> AsyncIterator[ListPage[Any]]:
        yield ListPage(items=[OLD, RELEASED, GONE] if path == "/api/v1/nodes" else [], resource_version="7")

    async def list_page(
        self, path: str, _type: object, *, params: Any, transform: Any, timeout_s: float
    ) -> ListPage[Any]:
        self.asked.append((path, params))
        self.timeouts_s.append(timeout_s)
        if len(self.asked) <= self.refuses:
            raise TooManyRequests(429, "TooManyRequests", "later", path)
        return ListPage(items=[transform(NEW)], resource_version="9")

    async def get(self, path: str, *, type: type[Node]) -> Node:
        if not path.endswith("/n2"):
            raise NotFound(404, "NotFound", "none", path)
        return Node(metadata=Metadata(name="n2", uid="v", resource_version="8"))

    @asynccontextmanager
    async def watch(self, _path: str, _params: object, **_: object) -> AsyncIterator[AsyncIterator[list[bytes]]]:
        yield _nothing()


async def _nothing() -> AsyncIterator[list[bytes]]:
    await asyncio.Event().wait()
    yield []


class Listener:
    """Hears of every change and does nothing."""

    def __getattr__(self, _name: str) -> Any:
        return lambda *_: None


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
async def fleet(server: Server) -> AsyncIterator[WatchedFleet]:
    policy = parse_policy("rules: []\n")
    quick: Any = type("Middle", (), {"uniform": staticmethod(lambda _low, _high: 0.0)})()
    made = WatchedFleet(server, lambda: policy, Listener(), Clock(rng=quick))  # type: ignore[arg-type]
    running = asyncio.create_task(made.run())
    yield made
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_taints_that_the_watch_has_not_delivered_are_known_after_a_takeover(
    server: Server, fleet: WatchedFleet
) -> None:
    await fleet.wait_synced()
    assert fleet.nodes["n1"].spec.taints == ()
    assert await fleet.read_tainted() == "9"
    assert [fleet.nodes[name].spec.taints for name in ("n1", "n2")] == [(OURS,), ()]
    # no resourceVersion: the API server must not answer from its cache, which may be behind, too
    assert server.asked == [("/api/v1/nodes", {"labelSelector": f"{FAULTY_LABEL}=true"})] * 2


async def test_each_attempt_to_list_the_tainted_nodes_may_take_longer(server: Server, fleet: WatchedFleet) -> None:
    """The API server reads the whole fleet from etcd for it, and a list that is given up has to be made again."""
    server.refuses = 3
    await fleet.read_tainted()
    assert server.timeouts_s == [15.0, 30.0, 60.0, 60.0]
