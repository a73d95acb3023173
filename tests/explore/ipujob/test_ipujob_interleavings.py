"""Operators, V-IPU proxy and V-IPU in every order: a slice of what ``make explore`` visits, and defects that it finds.

A defect is planted by replacing one function of the real code in a tiny scope.
"""

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import pytest
from tests.explore.breadth import BreadthExplorer, Result
from tests.explore.ipujob.scopes import SCOPES
from tests.explore.ipujob.state import make_job
from tests.explore.ipujob.world import IPUJobWorld

from muster_kube.api.errors import Conflict
from muster_operator.act.executor import ActionExecutor
from muster_operator.act.leader_check import LeaderCheck
from muster_operator.act.unseen_pods import UnseenPods
from muster_operator.job.partition_api import PartitionRefusal
from muster_operator.job.snapshot import ActionResult
from muster_operator.plan import instance_restart
from muster_operator.proxy.partitions.reconciler import PartitionReconciler
from muster_operator.vipu.controller import VipuUnreachable

SLICE = 3000  # states
AGAIN = {"type": "OnFailure", "backOffLimit": 3}


def explore(world: IPUJobWorld, **bounds: Any) -> Result:
    result = BreadthExplorer(world, **bounds).run()
    world.end()
    return result


def small(
    *kinds: tuple[Any, ...], operators: int = 1, begun: bool = False, behind: str = "", **spec: Any
) -> IPUJobWorld:
    """One job, and no other orders of the usual steps."""
    jobs, left = {"a": make_job("a", 1, **spec)}, dict.fromkeys(kinds, 1)
    return IPUJobWorld(jobs, left, operators=operators, orders=False, begun=begun, behind=behind)


@pytest.mark.parametrize("scope", ["everything", "begin"])
def test_a_slice_of_all_states_is_all_right(scope: str) -> None:
    result = explore(SCOPES[scope](), states=SLICE)
    print(scope, result)
    assert result.violations == []
    assert result.states >= SLICE


def test_a_deletion_that_meets_a_conflict_completes() -> None:
    """The hang of the soak: 409 to the deletion of a pod, which is as it was."""
    result = explore(small(("delete", "a"), ("refuse",), begun=True), departures=2)
    assert result.violations == []
    assert result.departures == 2


def test_a_creation_that_v_ipu_carries_out_late_leaks_nothing() -> None:
    result = explore(small(("silent",), ("delete", "a")), departures=2)
    assert result.violations == []
    assert result.departures == 2


def new_leader_that_has_not_seen_the_pods(*kinds: tuple[Any, ...], **spec: Any) -> IPUJobWorld:
    return small(("depose",), *kinds, operators=2, begun=True, behind="/pods", **spec)


def released() -> IPUJobWorld:
    return new_leader_that_has_not_seen_the_pods(("delete", "a"))


def reset() -> IPUJobWorld:
    """One of two workers fails, so a new attempt begins while the other one runs."""
    return new_leader_that_has_not_seen_the_pods(
        ("end", "Failed"), ("catch up",), workersPerJobInstance="2", restartPolicy=AGAIN
    )


@pytest.mark.parametrize(("world", "departures"), [(released, 2), (reset, 3)])
def test_a_leader_whose_watch_lags_takes_no_partition_from_a_pod_of_its_predecessor(
    world: Callable[[], IPUJobWorld], departures: int
) -> None:
    result = explore(world(), departures=departures)
    assert result.violations == []
    assert result.departures == departures


@pytest.mark.parametrize(("world", "kinds"), [(released, ["delete", "depose"]), (reset, ["depose", "end"])])
def test_a_partition_that_is_taken_from_a_pod_that_no_watch_has_shown_is_found(
    world: Callable[[], IPUJobWorld], kinds: list[str]
) -> None:
    async def trusting(_self: UnseenPods, _partition: str) -> None:
        pass

    with patch.object(UnseenPods, "look_for", trusting):
        result = explore(world(), departures=2)
    assert sorted(_kinds(result)) == kinds


def test_a_partition_that_is_taken_from_a_pod_that_the_watch_shows_after_the_decision_is_found() -> None:
    look_for = UnseenPods.look_for

    async def forgetful(self: UnseenPods, partition: str) -> None:
        key = f"{self._namespace}/{self._name}"
        self._known |= {(name, pod.metadata.uid) for name, pod in self._cluster.pods.of_job(key, self._uid).items()}
        await look_for(self, partition)

    with patch.object(UnseenPods, "look_for", forgetful):
        result = explore(reset(), departures=3)
    assert sorted(_kinds(result)) == ["catch_up", "depose", "end"]


def replicas(*kinds: tuple[Any, ...]) -> IPUJobWorld:
    return small(("end", "Failed"), *kinds, begun=True, jobInstances=2, restartPolicy=AGAIN)


def test_a_replica_that_fails_is_replaced_whoever_ends_meanwhile() -> None:
    result = explore(replicas(("refuse",), ("crash", "operator 0"), ("crash", "proxy")), departures=2)
    assert result.violations == []
    assert result.departures == 2


def test_a_replica_that_stays_down_is_found() -> None:
    with patch.object(instance_restart, "_ended_instances", lambda _state: iter(())):
        result = explore(replicas(), departures=1)
    assert _kinds(result) == ["end"]


def test_a_finalizer_that_waits_for_ever_is_found() -> None:
    delete = ActionExecutor._delete_pod

    async def trusting(self: ActionExecutor, job: Any, action: Any) -> ActionResult:
        try:
            return await delete(self, job, action)
        except Conflict:
            return ActionResult.NOTHING  # "gone, or another pod of that name: the watch reports it"

    with patch.object(ActionExecutor, "_delete_pod", trusting):
        result = explore(small(("delete", "a"), ("refuse",), begun=True), departures=2)
    assert _kinds(result) == ["delete", "refused"]


def test_a_partition_that_leaks_when_the_answer_of_its_creation_is_lost_is_found() -> None:
    create = PartitionReconciler._create

    async def hasty(self: PartitionReconciler, turn: Any) -> float | None:
        try:
            return await create(self, turn)
        except VipuUnreachable as error:
            turn.progress.is_sure = True
            return await self._withdraw(turn, PartitionRefusal(why="Unreachable", message=str(error)))

    with patch.object(PartitionReconciler, "_create", hasty):
        result = explore(small(("silent",)), departures=1)
    assert _kinds(result) == ["lost"]


def test_a_partition_that_v_ipu_creates_after_its_deletion_is_found() -> None:
    with patch.object(PartitionReconciler, "_note_unanswered_creation", lambda _self, _name: None):
        result = explore(small(("silent",), ("delete", "a")), departures=2)
    assert _kinds(result) == ["lost", "delete"]


def test_two_leaders_that_both_create_are_found() -> None:
    async def trusting(_self: LeaderCheck, _job: object, _plan: object) -> bool:
        return False

    with patch.object(LeaderCheck, "is_stale", trusting):
        stale = ("stall", "operator 1", "/ipujobs")
        world = small(("depose",), ("end", "Succeeded"), stale, operators=2, begun=True, cleanPodPolicy="All")
        result = explore(world, departures=3)
    assert sorted(_kinds(result)) == ["depose", "end", "stall"]


def test_a_pod_that_starts_on_a_tainted_node_is_found() -> None:
    tolerant = {
        "spec": {"containers": [{"name": "main", "image": "poplar:3"}], "tolerations": [{"operator": "Exists"}]}
    }
    world = small(("taint", "node-0"), workers={"template": tolerant})
    with patch("muster_operator.resources.placement.node_affinity", lambda users, **_: dict(users)):
        result = explore(world, departures=1)
    assert _kinds(result) == ["taint"]


def _kinds(result: Result) -> list[str]:
    """The disturbances of its one violation."""
    (found,) = result.violations
    kinds = {"delete", "refused", "lost", "depose", "end", "taint", "stall", "catch_up"}
    return [str(step.what[0]) for step in found.trace if step.what[0] in kinds]
