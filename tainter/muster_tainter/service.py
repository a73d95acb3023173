"""The tainter's HTTP interface: API, fleet page and volume trials, with connections of their own.

Separate from :mod:`muster_tainter.app`, which imports it only once the watches are under way: its libraries take a
quarter of a second of CPU to load, and no taint needs them.
"""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from muster_kube.api.client import KubeClient
from muster_kube.api.config import ClusterConfig
from muster_kube.api.reviews import Reviews
from muster_kube.http.server import make_server
from muster_kube.process.lifetime import cancel_tasks
from muster_kube.volume_trial import VolumeTrialRunner
from muster_tainter.controller import Tainter
from muster_tainter.http.job_nodes import LISTS_AT_ONCE, NodeLocator
from muster_tainter.http.routes import make_app
from muster_tainter.http.volume_trials import AT_ONCE, TrialAuthorizer, VolumeTrials
from muster_tainter.metrics import TainterMetrics
from muster_tainter.page.clear import ClearHandler
from muster_tainter.page.feed import FleetFeed, FleetStatus
from muster_tainter.page.goodput import GoodputReader, add_goodput_page
from muster_tainter.page.routes import add_page
from muster_tainter.settings import TainterSettings

STOP_S = 5.0


@asynccontextmanager
async def serving(
    listener: socket.socket,
    config: ClusterConfig,
    user_agent: str,
    settings: TainterSettings,
    tainter: Tainter,
    metrics: TainterMetrics,
    status: FleetStatus,
) -> AsyncIterator[asyncio.Task[None]]:
    """The task that serves. At the end, ongoing trials are ended and open requests get a few seconds."""
    # separate: requests for trials, even malicious ones, must not delay taints, and no trial another trial's end
    async with (
        KubeClient(config, user_agent=user_agent, max_connections=4) as reviewing,
        KubeClient(config, user_agent=user_agent, max_connections=4 * AT_ONCE) as trying,
        KubeClient(config, user_agent=user_agent, max_connections=LISTS_AT_ONCE) as locating,
    ):
        trials_in = settings.trials_namespace or config.namespace
        authorizer = TrialAuthorizer(reviewing, Reviews(reviewing), trials_in)
        trials = VolumeTrials(VolumeTrialRunner(trying, trials_in), settings.trials_image)
        feed = FleetFeed(tainter, status)
        tainter.on_news = feed.changed
        service = make_app(tainter, metrics, authorizer, trials, NodeLocator(locating))
        add_page(service, tainter.fleet, feed, ClearHandler(reviewing, Reviews(reviewing)))
        add_goodput_page(service, GoodputReader(reviewing, settings.namespace or config.namespace))
        server = make_server(service)
        http = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            yield http
        finally:
            await trials.stop()
            feed.close()
            server.should_exit = True
            await asyncio.wait([http], timeout=STOP_S)
            await cancel_tasks(http)
