"""A sandbox in which nothing happens costs its API server nothing. It is one of its own, so that it idles beside other
tests.
"""

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cluster.commands.running_sandbox import (
    COMMAND,
    FAULTY,
    XID_79,
    RunningSandbox,
    start_sandbox,
    with_own_kernel_log,
)

from muster_sandbox.controlplane.audit import AuditedRequest, AuditLog

SETTLE_S = 20.0  # what came before has been written: Events that repeat are counted up every 10 s at most
IDLE_S = 300.0 if os.environ.get("CI") else 30.0
IDLE_TRIES = 3


@pytest.fixture
def box(binaries: Path, tmp_path: Path) -> Iterator[RunningSandbox]:
    command = with_own_kernel_log(COMMAND, tmp_path / "kernel.log")
    with start_sandbox(tmp_path / "box", binaries, command=command) as running:
        yield running


@pytest.mark.beside
@pytest.mark.timeout(IDLE_TRIES * (IDLE_S + SETTLE_S) + 300)
def test_an_idle_sandbox_makes_no_list_and_no_write(box: RunningSandbox) -> None:
    """Counted from the API server's audit log, after a fault that came and went. Lease renewals do not count, nor does
    what this test's own client does."""
    assert box.muster("sandbox", "inject", "sim-2", XID_79).returncode == 0
    box.until(lambda: box.taints("sim-2") == [FAULTY], "tainted")
    assert box.muster("clear", "sim-2").returncode == 0
    box.until(lambda: not box.taints("sim-2") and not box.findings("sim-2"), "free")
    audit = AuditLog(box.data / "audit.log", box.ping)
    for _ in range(IDLE_TRIES):
        told = box.told()
        time.sleep(SETTLE_S)
        since = audit.mark()
        time.sleep(IDLE_S)
        asked = audit.count(since, keep=of_muster)
        if box.told() == told:
            break  # else this machine's own kernel had something to say, which is to be written
    else:
        pytest.fail("findings come and go all the time here: this machine is not idle")
    leases = {key for key in asked if key[2] == "leases"}
    watches = {key for key in asked if key[1] == "watch"}
    assert set(asked) - leases - watches == set()
    assert leases, "the audit log shows not even the lease renewals: it proves nothing"


def of_muster(request: AuditedRequest) -> bool:
    return request.user.startswith("system:serviceaccount:muster:") or request.user_agent.startswith("muster")
