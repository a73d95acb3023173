"""The tainter's HTTP side over a made fleet: its own reflectors, fed by a scripted API server on loopback."""

import asyncio
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import msgspec
import uvicorn
from tests.browser.sample_fleet import SampleFleet
from tests.kube.conftest import FakeApi, Reply, Stream

from muster_kube.api.client import KubeClient
from muster_kube.api.config import ClusterConfig
from muster_kube.api.reviews import ACCESS_REVIEWS, TOKEN_REVIEWS, Reviews
from muster_kube.nodehealth import PATH
from muster_tainter.budgets.incidents import Incident
from muster_tainter.budgets.pool_usage import BudgetUsage
from muster_tainter.controller import Tainter
from muster_tainter.devices.api_versions import GROUP, RULES, SLICES
from muster_tainter.fleet.interface import NODES_PATH
from muster_tainter.fleet.replica import Connections, Replica
from muster_tainter.http.job_nodes import NodeLocator
from muster_tainter.http.routes import make_app
from muster_tainter.metrics import TainterMetrics
from muster_tainter.page.clear import ClearHandler
from muster_tainter.page.feed import FleetFeed, FleetStatus
from muster_tainter.page.goodput import GoodputReader, add_goodput_page
from muster_tainter.page.routes import add_page

GUARD_S = 120.0  # what hangs fails, what is slow does not
TOKENS = {"t-ada": "ada", "t-bob": "bob"}
MAY_CLEAR = ("ada",)


class FleetServer:
    """A tainter that serves ``fleet``. ``leading`` and the others may be changed while it runs.

    steady: the feed's clock stands still but for ``clock``; else it is the machine's
    """

    def __init__(self, fleet: SampleFleet, listener: socket.socket | None = None, *, steady: bool = True) -> None:
        self.fleet = fleet
        self._listener = listener
        self._steady = steady
        self.api = FakeApi()
        self.leading = True
        self.paused = ""
        self.usage: list[BudgetUsage] = []
        self.incidents: list[Incident] = []
        self.clock = 1000.0  # the feed's, seconds
        self.port = 0
        self.tainter: Tainter
        self.feed: FleetFeed
        self.books: GoodputReader
        self.server: uvicorn.Server
        self.app: Any

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def policy_changed(self) -> None:
        self.tainter.policy_changed()

    def drop_streams(self) -> None:
        """Every reader's connection breaks."""
        for connection in list(self.server.server_state.connections):
            connection.transport.abort()

    def change(self, name: str) -> None:
        """The watch brings the node, and its NodeHealth, as the fleet has them now."""
        self.tainter.fleet.health_watch.observe(self.fleet.healths[name])
        self.tainter.fleet.node_watch.observe(self.fleet.nodes[name])

    def _listed(self, kind: str, objects: Any) -> Reply:
        items = [msgspec.to_builtins(each) for each in objects.values()]
        return Reply(200, {"kind": kind, "metadata": {"resourceVersion": str(self.fleet.version)}, "items": items})

    def _one(self, asked: Any) -> Reply:
        name = asked.path.rpartition("/")[2]
        found = (self.fleet.healths if asked.path.startswith(PATH) else self.fleet.nodes).get(name)
        return Reply(200, msgspec.to_builtins(found)) if found else Reply(404, {"kind": "Status", "reason": "NotFound"})

    def _script(self) -> None:
        self.api.on("GET", NODES_PATH, self._listed("NodeList", self.fleet.nodes))
        self.api.on("GET", PATH, self._listed("NodeHealthList", self.fleet.healths))
        for path in (NODES_PATH, PATH):
            self.api.on("WATCH", path, Stream())
        if self.fleet.slices:
            self._script_devices()
        self.api.on("POST", TOKEN_REVIEWS, self._review_token)
        self.api.on("POST", ACCESS_REVIEWS, self._review_access)

    def _script_devices(self) -> None:
        """Kubernetes 1.36 with DeviceTaintRules."""
        versions = {"v1": [SLICES], "v1beta2": [SLICES, RULES]}
        group = {"versions": [{"groupVersion": f"resource.k8s.io/{each}", "version": each} for each in versions]}
        self.api.on("GET", GROUP, Reply(200, {"kind": "APIGroup", **group}))
        for version, names in versions.items():
            resources = [{"name": name} for name in names]
            self.api.on("GET", f"{GROUP}/{version}", Reply(200, {"kind": "APIResourceList", "resources": resources}))
        slices, rules = f"{GROUP}/v1/{SLICES}", f"{GROUP}/v1beta2/{RULES}"
        self.api.on("GET", slices, self._listed("ResourceSliceList", self.fleet.slices))
        self.api.on("GET", rules, self._listed("DeviceTaintRuleList", {}))
        for path in (slices, rules):
            self.api.on("WATCH", path, Stream())

    def script_node(self, name: str, patched: Callable[[Any], Reply]) -> None:
        """The node can be read, and its NodeHealth patched."""
        self.api.on("GET", f"{NODES_PATH}/{name}", self._one)
        self.api.on("GET", f"{PATH}/{name}", self._one)
        self.api.on("PATCH", f"{PATH}/{name}", patched)

    def _review_token(self, asked: Any) -> Reply:
        user = TOKENS.get(msgspec.json.decode(asked.body)["spec"]["token"])
        return Reply(201, {"status": {"authenticated": bool(user), "user": {"username": user or ""}}})

    def _review_access(self, asked: Any) -> Reply:
        spec = msgspec.json.decode(asked.body)["spec"]
        attributes = spec["resourceAttributes"]
        right = (attributes["verb"], attributes["group"], attributes["resource"]) == (
            "patch",
            "muster.dev",
            "nodehealths",
        )
        return Reply(201, {"status": {"allowed": right and spec["user"] in MAY_CLEAR}})

    @asynccontextmanager
    async def running(self) -> AsyncIterator["FleetServer"]:
        """Listed, and served on a port of its own."""
        await self.api.start()
        config = ClusterConfig(origin="test", server=f"http://127.0.0.1:{self.api.port}")
        nobody: Any = None
        async with KubeClient(config, timeout_s=GUARD_S) as client:
            metrics = TainterMetrics()
            self.tainter = Tainter(
                Connections.shared(client), lambda: self.fleet.policy, Replica(may_write=lambda: False), metrics
            )
            around = FleetStatus(lambda: self.leading, lambda: self.usage, lambda: self.incidents, lambda: self.paused)
            self.feed = FleetFeed(self.tainter, around, clock=(lambda: self.clock) if self._steady else time.monotonic)
            self.tainter.on_news = self.feed.changed
            self.app = make_app(self.tainter, metrics, nobody, nobody, NodeLocator(client))
            add_page(self.app, self.tainter.fleet, self.feed, ClearHandler(client, Reviews(client)))
            self.books = GoodputReader(client, "muster")
            add_goodput_page(self.app, self.books)
            self._script()
            listener = self._listener or socket.create_server(("127.0.0.1", 0))
            self.port = listener.getsockname()[1]
            self.server = server = uvicorn.Server(
                uvicorn.Config(self.app, log_config=None, access_log=False, lifespan="off")
            )
            serving = asyncio.create_task(server._serve(sockets=[listener]))
            watching = asyncio.create_task(self.tainter.watch())
            try:
                async with asyncio.timeout(GUARD_S):
                    await self.tainter.fleet.node_watch.wait_synced()
                    await self.tainter.fleet.health_watch.wait_synced()
                yield self
            finally:
                self.feed.close()
                server.should_exit = True
                watching.cancel()
                await asyncio.gather(serving, watching, return_exceptions=True)
                await self.api.stop()


class ThreadedFleetServer:
    """A FleetServer in a thread of its own, for a browser that is driven by blocking calls."""

    def __init__(self, stand: FleetServer, loop: asyncio.AbstractEventLoop) -> None:
        self.stand = stand
        self._loop = loop

    def call(self, work: Callable[[], Any]) -> Any:
        """In the server's thread."""

        async def run() -> Any:
            return work()

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(GUARD_S)


@contextmanager
def served(fleet: SampleFleet) -> Iterator[ThreadedFleetServer]:
    ready = threading.Event()
    held: list[ThreadedFleetServer] = []
    failed: list[BaseException] = []

    async def run() -> None:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        async with FleetServer(fleet, steady=False).running() as stand:
            held.append(ThreadedFleetServer(stand, loop))
            stops.append(lambda: loop.call_soon_threadsafe(stop.set))
            ready.set()
            await stop.wait()

    def work() -> None:
        try:
            asyncio.run(run())
        except BaseException as error:
            failed.append(error)
            raise
        finally:
            ready.set()

    stops: list[Callable[[], object]] = []
    thread = threading.Thread(target=work, name="fleet-server", daemon=True)
    thread.start()
    assert ready.wait(GUARD_S), "the server has not started"
    assert not failed, failed
    try:
        yield held[0]
    finally:
        stops[0]()
        thread.join(GUARD_S)
        assert not thread.is_alive(), "the server has not ended"
