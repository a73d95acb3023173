"""Days on which much goes wrong at once, on the real API server: nothing is made twice, and nobody is flooded (58)."""

import time
from collections import Counter
from collections.abc import Callable

import httpx2
import pytest
from tests.cluster.ipujob.operator_bed import inference, training
from tests.cluster.ipujob_failures.api_faults import FAULTS, ApiFaults, ExposedProcess
from tests.cluster.ipujob_failures.embedded_jobs import (
    JOB,
    EmbeddedJob,
    JobTestBed,
    is_empty,
    job_bed_fixture,  # noqa: F401 - the fixture
)
from tests.cluster.ipujob_failures.embedded_operator import ProcessFate, Send

from muster_operator.act.event_recorder import BURST, REFILL_S
from muster_operator.act.status_writer import LINE_S, LINES
from muster_operator.plan.hardware.degradation import DEGRADED, OVER_S, RESTORED
from muster_sandbox.simulation.nodes import NODES, for_each

MET = 6  # requests, of each storm
GIVEN_UP_S = 2.0  # a call that hangs
STORM_OF_RESTARTS = 14


def runs(life: EmbeddedJob, attempt: int = 0, instances: int = 1) -> Callable[[], bool]:
    def holds() -> bool:
        said = life.status()
        now = (said.launcher_status, said.attempt, said.current_replicas)
        return now == ("Running", attempt, instances) and life.is_at_rest()

    return holds


async def ends_well(life: EmbeddedJob) -> None:
    await life.delete()
    await life.until(lambda: is_empty(life), "nothing is left")


async def test_58_whatever_the_api_server_answers_nothing_is_made_twice(
    job_bed: JobTestBed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("muster_kube.controller.reflector.LIST_SILENCE_S", GIVEN_UP_S)  # a minute otherwise

    async def live(storm: str) -> None:
        faults = ApiFaults(storm, MET)
        async with job_bed.run_job(ExposedProcess(faults), ExposedProcess(faults), timeout_s=GIVEN_UP_S) as life:
            await life.submit(training())
            await life.until(runs(life), f"it runs in spite of: {storm}")
            assert faults.met == (0 if storm == "ends watches" else MET)
            faults.left = MET
            faults.end_watches()
            await life.end_pod("launcher", 0)
            await life.until(lambda: life.status().launcher_status == "Completed", f"it ends in spite of: {storm}")
            await ends_well(life)

    await for_each(FAULTS, live)
    assert job_bed.made_twice() == {}


async def test_58_two_operators_that_both_believe_they_lead_make_nothing_twice(job_bed: JobTestBed) -> None:
    async with job_bed.run_job(operators=2) as life:
        await life.submit(inference(restartPolicy={"type": "OnFailure"}))
        await life.until(runs(life), "it runs")
        await life.scale(3)
        await life.until(runs(life, instances=3), "it has grown")
        await life.scale(1)
        await life.until(runs(life), "it has shrunk")
        await life.end_pod("worker-0", 1)
        await life.until(runs(life, attempt=1), "it runs again")
        assert life.status().restart_count == 1
        await ends_well(life)
    assert job_bed.made_twice() == {}


class Counted(ProcessFate):
    """by: requests that write, by method and resource."""

    def __init__(self) -> None:
        super().__init__()
        self.by: Counter[str] = Counter()

    async def pass_on(self, request: httpx2.Request, send: Send) -> httpx2.Response:
        before = len(self.written)
        answer = await super().pass_on(request, send)
        if len(self.written) > before:
            self.by[f"{request.method} {request.url.path.split('/namespaces/')[1].split('/')[1]}"] += 1
        return answer


async def test_a_launcher_that_exits_at_once_costs_each_restart_its_pods_and_few_events(job_bed: JobTestBed) -> None:
    fate, begun = Counted(), time.monotonic()
    async with job_bed.run_job(fate) as life:
        await life.submit(training(restartPolicy={"type": "OnFailure", "backOffLimit": 1000}))
        for attempt in range(STORM_OF_RESTARTS):
            # workers die of it, too, in turn with the launcher
            await life.until(runs(life, attempt), f"attempt {attempt}")
            await life.end_pod("launcher" if attempt % 2 else f"worker-{attempt // 2 % 2}", 1)
        await life.until(runs(life, STORM_OF_RESTARTS), "the last attempt")
        made = 3 * (STORM_OF_RESTARTS + 1)
        assert (fate.by["POST pods"], fate.by["DELETE pods"]) == (made, made - 3)
        assert fate.by["POST events"] <= BURST + (time.monotonic() - begun) / REFILL_S + 1
        # restarting, beginning, running, and the number of workers between them
        assert fate.by["PATCH ipujobs"] <= 6 * (STORM_OF_RESTARTS + 1)
        assert life.status().restart_count == STORM_OF_RESTARTS
        await ends_well(life)
    assert job_bed.made_twice() == {}


async def test_a_node_that_flaps_costs_few_writes_moves_no_pod_and_lets_a_waiting_job_be(job_bed: JobTestBed) -> None:
    running, waiting = Counted(), Counted()
    async with job_bed.run_job(running) as here, job_bed.run_job(waiting) as there:
        await here.submit(inference())
        await there.submit(training(ipus=64))
        await here.until(runs(here), "it runs")
        await there.until(lambda: "room for 0 of 1" in there.status().last_message, "it waits")
        before, begun = (Counter(running.by), Counter(waiting.by)), time.monotonic()
        pod = here.watcher.pods(here.namespace)[f"{JOB}-worker-0"]
        for status in ("False", "True") * 20:
            body = {"status": {"conditions": [{"type": "Ready", "status": status}]}}
            await job_bed.api.patch(f"{NODES}/{pod.spec.node_name}/status", body, kind="strategic")

        def is_over() -> bool:
            said = {each.type: each.reason for each in here.status().conditions}
            return said.get(DEGRADED) == RESTORED

        await here.until(is_over, "what was bad is good again")
        assert here.watcher.pods(here.namespace)[f"{JOB}-worker-0"].metadata.uid == pod.metadata.uid
        # that it is bad, and, OVER_S later by the whole seconds of times in conditions, that it is good
        lasted_s = time.monotonic() - begun
        assert (running.by - before[0])["PATCH ipujobs"] <= 2 * (1 + lasted_s // (OVER_S - 1))
        # an Event is sent once the status is written
        await here.until(lambda: (running.by - before[0])["POST events"] >= 2, "both Events are sent")
        assert (running.by - before[0])["POST events"] == 2
        # whether there is a node at all is what it waits for; one Event of it
        assert (waiting.by - before[1])["PATCH ipujobs"] <= LINES + 1 + lasted_s // LINE_S
        assert (waiting.by - before[1])["POST events"] <= 1
        await there.until(lambda: "room for 0 of 1" in there.status().last_message, "it waits as before")
        await ends_well(here)
        await ends_well(there)
