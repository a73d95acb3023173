"""That most agents are silent at once is told by an Event, whatever stands in its way."""

from typing import Any, cast

import pytest
from prometheus_client import CollectorRegistry
from tests.tainter.fake_fleet import FakeFleet

from muster_kube.api.client import KubeClient
from muster_kube.api.errors import AlreadyExists, ApiError, ConfigError, Unreachable
from muster_tainter.agents.liveness import AgentOutage
from muster_tainter.agents.watcher import AgentWatch
from muster_tainter.events.recorder import record_policy_event
from muster_tainter.fleet.replica import AgentPodSelector, Replica
from muster_tainter.pause import record_pause_event

PATH = "/api/v1/namespaces/muster/events"


class Server:
    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.events: list[str] = []

    async def create(self, path: str, body: Any, **_: object) -> Any:
        assert path == PATH
        if self.errors:
            raise self.errors.pop(0)
        self.events.append(body.reason)
        return body


def watch(server: Server) -> AgentWatch:
    replica = Replica(may_write=lambda: True)
    agents = AgentPodSelector("muster", "app=x")
    made = AgentWatch(cast("KubeClient", server), FakeFleet(), replica, CollectorRegistry(), agents)
    made._liveness.outage = AgentOutage(1.8e9)
    return made


@pytest.mark.parametrize("error", [Unreachable("refused", PATH), ConfigError("token: cannot be read")])
async def test_what_could_not_be_told_is_told_later(error: ApiError | ConfigError) -> None:
    """A token that cannot be read for a moment must not end the tainter."""
    server = Server(error)
    agents = watch(server)
    assert await agents._record_outage() is True
    assert await agents._record_outage() is False
    assert server.events == ["AgentsSilent"]
    assert await agents._record_outage() is False
    assert server.events == ["AgentsSilent"]


async def test_what_another_leader_has_told_is_told() -> None:
    server = Server(AlreadyExists(409, "AlreadyExists", "", PATH))
    agents = watch(server)
    assert await agents._record_outage() is False
    assert server.events == []


async def test_no_word_about_policy_and_pause_ends_the_tainter() -> None:
    client = cast("KubeClient", Server(ConfigError("token"), ConfigError("token")))
    await record_policy_event(client, "policy.yaml", None, namespace="muster", now=1.8e9)
    await record_pause_event(client, "paused by ann", namespace="muster", now=1.8e9)
