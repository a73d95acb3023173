"""An outage of the API server: the first answer after it ends the long pauses, also where it is 410 Gone.

Nodes whose faults fired during the outage are then tainted at once. How soon is `make bench --only outage`'s to say.
"""

import pytest
from tests.kube.conftest import api, client, config, fake_time, wire  # noqa: F401 - fixtures
from tests.kube.controller.test_reflector import PATH, running, watched  # noqa: F401 - one is a fixture


@pytest.mark.parametrize("how", ["status", "event"])
async def test_gone_after_an_outage_is_listed_at_once(api, watched, wire, fake_time, how):  # noqa: F811 - fixtures
    """The version is older than all that a server knows that has restarted."""
    gone = wire.failure(410, "Expired")
    first = wire.Reply(410, gone) if how == "status" else wire.Stream((wire.event("ERROR", gone),))
    unavailable = wire.Reply(503, wire.failure(503, "ServiceUnavailable"))
    api.on("GET", PATH, wire.Reply(200, wire.listing(10)), wire.Reply(200, wire.listing(50)))
    api.on("WATCH", PATH, *[unavailable] * 8, first, wire.Stream())
    async with running(watched.reflector):
        await wire.until(lambda: len(api.asked_for("WATCH")) == 10)
    assert fake_time.slept[-2] >= 15, "the server answered, and refused"
    assert fake_time.slept[-1] == 0
