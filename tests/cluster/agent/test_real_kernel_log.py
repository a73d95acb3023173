"""The agent on this machine's own kernel log, against a real API server."""

import random
from pathlib import Path

import pytest
from tests.cluster.agent.test_agent_publishing import HEALTHS, Bench, bench, until  # noqa: F401 - one is a fixture


@pytest.mark.kmsg
def test_a_line_of_the_real_kernel_log_ends_in_the_nodehealth(bench: Bench) -> None:  # noqa: F811 - the fixture
    node = bench.node()
    # from now on: whatever other runs of the tests have left in this machine's log is not of interest
    agent = bench.agent(node, "--kmsg", "/dev/kmsg", start="now").start()
    until(lambda: agent.get("/readyz")[0] == 200)
    place = f"{random.randrange(1 << 16):04x}:{random.randrange(1, 1 << 8):02x}"
    with Path("/dev/kmsg").open("w") as log:
        log.write(f"NVRM: Xid (PCI:{place}:00): 79, GPU has fallen off the bus.\n")
    component = f"gpu/{place}:00.0"
    until(lambda: any(f[0] == component for f in bench.findings(node)), what=agent.log)
    finding = next(f for f in bench.dmesg(node)["findings"] if f["component"] == component)
    assert finding["origin"] == "user"


@pytest.mark.kmsg
@pytest.mark.parametrize(("device", "hop"), [("/dev/kmsg", "at"), ("/dev/null", "unread")])
def test_a_canary_begins_as_a_line_of_the_real_kernel_log(bench: Bench, device: str, hop: str) -> None:  # noqa: F811
    """With a device that takes the line and never gives it back, the agent says that it was not read."""
    node = bench.node()
    agent = bench.agent(node, "--kmsg", device, start="now", canary_kernel_line=True).start()
    until(lambda: bench.status(node).get("verdict"), what=agent.log)
    bench.plane.admin.patch(f"{HEALTHS}/{node}", {"spec": {"canary": {"id": "once"}}})
    canary = until(lambda: bench.status(node).get("canary"), what=agent.log)
    assert bool(canary.get(hop)), canary
    assert canary.get("id", "") == ("once" if hop == "at" else "")
    assert not bench.findings(node)
