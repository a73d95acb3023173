"""A taken node reports as many findings as an object takes, again and again: the tainter, which has a quarter of a
core, goes on tainting others.

Without a limit of findings it lost its lease over each report and tainted none.
"""

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator
from functools import partial

import pytest
from tests.cluster.tainter import test_end_to_end as end_to_end
from tests.cluster.tainter.test_bad_input import full_report
from tests.cluster.tainter.test_end_to_end import HEALTHS, Cluster, Replica, Tainters, finding, until

from muster_sandbox.simulation.nodes import SimulatedNodes

tainters, cluster = end_to_end.tainters, end_to_end.cluster  # fixtures
TURN_S = 0.05
CHECKS = 128  # with 64 findings each: more is refused by the NodeHealth's schema
PAUSE_S = 1.0


@contextlib.asynccontextmanager
async def quarter_of_a_core(replica: Replica) -> AsyncIterator[None]:
    """As a CPU limit does: the process runs for a moment and then stands still for three."""
    process = await asyncio.create_subprocess_exec(
        "sh", "-c",
        f"while kill -STOP $0; do sleep {3 * TURN_S}; kill -CONT $0; sleep {TURN_S}; done", str(replica.process.pid),
    )  # fmt: skip
    try:
        yield
    finally:
        process.kill()
        await process.wait()
        os.kill(replica.process.pid, signal.SIGCONT)


@pytest.mark.alone
async def test_others_are_tainted_meanwhile(tainters: Tainters, fleet: SimulatedNodes, cluster: Cluster) -> None:
    replica = await tainters.start()
    taken, *others = await fleet.create(4, prefix="many")
    await cluster.report(taken)
    reports = 0

    async def report_on() -> None:
        nonlocal reports
        while True:
            reports += 1
            await cluster.api.patch(f"{HEALTHS}/{taken}/status", full_report(CHECKS, occurrence=reports))
            await asyncio.sleep(PAUSE_S)

    async def reported(count: int) -> bool:
        return reports >= count

    async with quarter_of_a_core(replica):
        reporting = asyncio.create_task(report_on())
        try:
            await cluster.until_faulty(taken)
            for number, other in enumerate(others, 1):
                await until(partial(reported, 4 * number), "it has gone on")
                await cluster.report(other, finding())
                await cluster.until_faulty(other)
        finally:
            reporting.cancel()
            await asyncio.gather(reporting, return_exceptions=True)
