"""Which change of a Node or NodeHealth concerns which background task, and how the tasks end."""

import asyncio
from typing import Any, cast

import pytest
from tests.tainter.fake_fleet import FakeFleet

from muster_kube.api.client import KubeClient
from muster_kube.api.objects import Metadata, Node, NodeSpec, Taint
from muster_kube.nodehealth import NodeHealth, NodeHealthStatus
from muster_tainter.background import BackgroundTasks, TriggeredTask, run_again
from muster_tainter.devices.quarantine import DeviceQuarantine
from muster_tainter.fleet.replica import Connections, Replica
from muster_tainter.metrics import TainterMetrics
from muster_tainter.settings import ACCELERATORS

TAINT = Taint(key="muster.dev/faulty", value="true", effect="NoSchedule")
PLAIN = Node(metadata=Metadata(name="n1"))
TAINTED = Node(metadata=Metadata(name="n1"), spec=NodeSpec(taints=(TAINT,)))
ANNOTATED = Node(metadata=Metadata(name="n1", annotations={"muster.dev/faults": "{}"}))
OTHER_VERSION = Node(metadata=Metadata(name="n1", resource_version="2"))
REPAIRS = {"Evictor", "RepairExecutor", "IpuQuarantineWriter"}


@pytest.fixture
def tasks() -> BackgroundTasks:
    nobody = cast("KubeClient", object())
    replica = Replica(may_write=lambda: True)
    fleet, metrics = FakeFleet(), TainterMetrics()
    devices = DeviceQuarantine(nobody, fleet, replica, metrics, lambda _: None)
    return BackgroundTasks(fleet, replica, Connections.shared(nobody), metrics, None, devices, ACCELERATORS)


def concerned(tasks: BackgroundTasks) -> set[str]:
    rounds: Any = [(each.task, getattr(each.task, "rounds", None)) for each in tasks._all]
    return {type(task).__name__ for task, of_task in rounds if of_task is not None and "n1" in of_task.changed}


@pytest.mark.parametrize(("old", "new", "who"), [
    (None, PLAIN, {"FleetPlanExecutor", "Verifier", *REPAIRS}),
    (PLAIN, TAINTED, {"FleetPlanExecutor", "Verifier", *REPAIRS}),
    (PLAIN, ANNOTATED, {"Verifier", *REPAIRS}),
    (PLAIN, OTHER_VERSION, set()),
    (PLAIN, None, {"FleetPlanExecutor", "Verifier", *REPAIRS}),
])  # fmt: skip
def test_a_node_that_changed_concerns_who_looks_at_that(
    tasks: BackgroundTasks, old: Node | None, new: Node | None, who: set[str]
) -> None:
    tasks.node_changed("n1", old, new)
    assert concerned(tasks) == who


def test_findings_of_sources_concern_the_plan_of_heavy_checks(tasks: BackgroundTasks) -> None:
    tasks.findings_changed("n1")
    assert concerned(tasks) == {"FleetPlanExecutor"}


def health(idle_since: str = "") -> NodeHealth:
    return NodeHealth(metadata=Metadata(name="n1"), status=NodeHealthStatus(idle_since=idle_since))


@pytest.mark.parametrize(("old", "new", "who"), [
    (None, health(), {"FleetPlanExecutor", "Verifier"}),
    (health(), health("2026-01-01T00:00:00Z"), {"FleetPlanExecutor", "Verifier", "Evictor"}),
    (health(), health(), {"FleetPlanExecutor", "Verifier"}),
])  # fmt: skip
def test_a_report_concerns_plan_and_proof_and_drains_where_jobs_came_or_went(
    tasks: BackgroundTasks, old: NodeHealth | None, new: NodeHealth | None, who: set[str]
) -> None:
    tasks.health_changed("n1", old, new)
    assert concerned(tasks) == who


async def test_an_error_in_one_task_ends_neither_it_nor_the_others(
    tasks: BackgroundTasks, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs: list[str] = []
    thrice = asyncio.Event()

    class Task:
        def __init__(self, name: str) -> None:
            self.name = name

        async def run(self) -> None:
            runs.append(self.name)
            if self.name == "wrong":
                if runs.count("wrong") == 3:
                    thrice.set()
                raise KeyError("books")
            await asyncio.Event().wait()

    def never(_old: object, _new: object) -> bool:
        return False

    monkeypatch.setattr("muster_tainter.background.AGAIN_S", 0.0)
    tasks._leading = tuple(TriggeredTask(cast("Any", Task(name)), never, never) for name in ("right", "wrong"))
    leading = asyncio.create_task(tasks.lead())
    await thrice.wait()
    assert not leading.done()
    assert runs.count("right") == 1
    leading.cancel()
    await asyncio.gather(leading, return_exceptions=True)


class FailsWhileItEnds:
    """A task of several parts, one of which fails just when the leadership ends."""

    def __init__(self) -> None:
        self.begun = 0

    async def run(self) -> None:
        self.begun += 1
        async with asyncio.TaskGroup() as group:
            group.create_task(self._part())

    async def _part(self) -> None:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            raise RuntimeError("the connection broke")

    def look_at_all(self) -> None: ...

    def note(self, name: str) -> None: ...


async def test_a_task_that_fails_just_when_the_leadership_ends_does_not_begin_again() -> None:
    failing = FailsWhileItEnds()
    running = asyncio.create_task(run_again(failing))
    while not failing.begun:  # noqa: ASYNC110 - counts turns of the loop, and waits for no clock
        await asyncio.sleep(0)
    await asyncio.sleep(0)
    running.cancel()
    for _ in range(10):
        await asyncio.sleep(0)
    assert running.cancelled()
    assert failing.begun == 1
