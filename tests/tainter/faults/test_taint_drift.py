"""Who took our taint off: judged on managedFields as kube-apiserver 1.20.2 wrote them (recorded from a real one).

The files under managed_fields/ are Nodes after: 1 our taint, 2 `kubectl taint node n1 muster.dev/faulty-`, 3 `kubectl
taint node n1 other=1:NoSchedule`, 4 the same as 2 with the other taint there, 5 `kubectl cordon`, after which the
controller-manager added its own taint, 6 `kubectl replace` and 7 `kubectl patch --type=json` without taints.
"""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from muster_kube.api.objects import ManagedNode, Node, Taint
from muster_tainter.faults.desired_state import decide
from muster_tainter.faults.record.node_record import as_our_taint
from muster_tainter.faults.taint_drift import NOBODY, TaintRemoval, find_removers
from muster_tainter.faults.taint_history import TaintHistory
from muster_tainter.policy.file import load_policy, parse_policy

FOLDER = Path(__file__).parent / "managed_fields"
POLICY = load_policy(None)
OURS = Taint(key="muster.dev/faulty", value="true", effect="NoSchedule")
OTHER = Taint(key="other", value="1", effect="NoSchedule")


def recorded(name: str) -> ManagedNode:
    return msgspec.json.decode((FOLDER / f"{name}.json").read_bytes(), type=ManagedNode)


def judge(name: str, *before: Taint, settled_s: float = 60.0, policy: Any = POLICY) -> dict[Any, str]:
    node = recorded(name)
    seen = TaintRemoval(before=before, after=node.spec.taints, settled_s=settled_s)
    return find_removers([as_our_taint(OURS)], seen, node, policy, "muster-tainter")


def test_kubectl_taint_beside_another_taint_is_a_person() -> None:
    assert judge("4-kubectl-removed-other-left", OTHER, OURS) == {as_our_taint(OURS): "kubectl-taint"}


@pytest.mark.parametrize("name", ["2-kubectl-removed", "6-replaced", "7-json-patch"])
def test_an_emptied_list_without_a_manager_is_a_person_where_nothing_else_moved(name: str) -> None:
    assert judge(name, OURS) == {as_our_taint(OURS): NOBODY}
    assert judge(name, OURS, settled_s=0.5) == {}
    assert judge(name, OURS, OTHER) == {}


def test_another_change_in_the_same_write_is_no_person() -> None:
    assert judge("4-kubectl-removed-other-left", OURS) == {}


def test_a_listed_controller_is_no_person() -> None:
    listed = parse_policy("{rules: [{name: a, action: taint}], listedControllers: [kubectl-taint]}")
    assert judge("4-kubectl-removed-other-left", OTHER, OURS, policy=listed) == {}


def test_the_controller_manager_is_no_person() -> None:
    node = recorded("5-cordoned")
    assert any(t.key == "node.kubernetes.io/unschedulable" for t in node.spec.taints)
    gone = Taint(key="muster.dev/gone", effect="NoSchedule")
    seen = TaintRemoval(before=(*node.spec.taints, gone), after=node.spec.taints, settled_s=60.0)
    assert find_removers([as_our_taint(gone)], seen, node, POLICY, "muster-tainter") == {}


def test_our_own_write_is_no_person() -> None:
    node = recorded("1-tainted")
    gone = Taint(key="muster.dev/gone", effect="NoSchedule")
    seen = TaintRemoval(before=(OURS, gone), after=(OURS,), settled_s=60.0)
    assert find_removers([as_our_taint(gone)], seen, node, POLICY, "muster-tainter") == {}


def test_what_nobody_saw_go_is_no_person() -> None:
    node = recorded("4-kubectl-removed-other-left")
    assert find_removers([as_our_taint(OURS)], None, node, POLICY, "muster-tainter") == {}


def test_a_list_that_changed_again_is_no_evidence() -> None:
    node = recorded("4-kubectl-removed-other-left")
    seen = TaintRemoval(before=(OTHER, OURS), after=(), settled_s=60.0)
    assert find_removers([as_our_taint(OURS)], seen, node, POLICY, "muster-tainter") == {}


class TestSeen:
    """The watch's evidence."""

    def history(self, make: Any, *steps: tuple[float, tuple[Taint, ...]]) -> TaintRemoval | None:
        tainted = decide(make.node(), make.health(make.finding()), POLICY, 1.8e9).applied(make.node())
        now = [0.0]
        seen = TaintHistory(lambda: now[0], lambda: POLICY)
        old: Node | None = None
        for at, taints in steps:
            now[0] = at
            new = msgspec.structs.replace(tainted, spec=msgspec.structs.replace(tainted.spec, taints=taints))
            seen.note("n1", old, new)
            old = new
        return seen.removal("n1")

    def test_a_removal_is_remembered_with_both_lists(self, make: Any) -> None:
        removal = self.history(make, (0, (OTHER, OURS)), (1, (OTHER,)))
        assert removal == TaintRemoval(before=(OTHER, OURS), after=(OTHER,), settled_s=float("inf"))

    def test_anothers_taint_that_went_just_before_unsettles(self, make: Any) -> None:
        removal = self.history(make, (0, (OTHER, OURS)), (5, (OURS,)), (5.5, ()))
        assert removal is not None
        assert removal.settled_s == 0.5

    def test_a_later_change_spoils_the_evidence(self, make: Any) -> None:
        assert self.history(make, (0, (OURS,)), (1, ()), (2, (OTHER,))) is None


# each part of the evidence


def removed_by(*managers: str, settled_s: float = 60.0, fields: str = '{"f:spec": {"f:taints": {}}}') -> str:
    """Who took our taint, which was beside another one."""
    left = (OTHER,) if managers else ()
    managed = [{"manager": manager, "fieldsV1": msgspec.Raw(fields.encode())} for manager in managers]
    node = {
        "metadata": {"name": "n1", "managedFields": managed},
        "spec": {"taints": [{"key": taint.key, "value": taint.value, "effect": taint.effect} for taint in left]},
    }
    seen = TaintRemoval(before=(*left, OURS), after=left, settled_s=settled_s)
    read = msgspec.json.decode(msgspec.json.encode(node), type=ManagedNode)
    return find_removers([as_our_taint(OURS)], seen, read, POLICY, "muster-tainter").get(as_our_taint(OURS), "")


@pytest.mark.parametrize(
    ("managers", "by"),
    [
        (["ada"], "ada"),
        (["ada", "bob", "eve"], "eve"),
        (["ada", "muster-tainter"], ""),
        (["kube-controller-manager", "ada"], ""),
    ],
)
def test_the_last_manager_of_the_taints_removed_it_unless_one_is_a_controller(managers: list[str], by: str) -> None:
    assert removed_by(*managers) == by


@pytest.mark.parametrize(("settled_s", "by"), [(1.9, ""), (2.0, NOBODY), (2.1, NOBODY)])
def test_an_empty_list_is_evidence_once_nothing_else_moved_for_two_seconds(settled_s: float, by: str) -> None:
    assert removed_by(settled_s=settled_s) == by


@pytest.mark.parametrize("fields", ['{"f:status": {}}', '{"f:spec": 7}', "[]", "{}"])
def test_a_manager_of_other_fields_removed_nothing(fields: str) -> None:
    """And a list that is not empty always has a manager, so nobody is taken to have removed it."""
    assert removed_by("ada", fields=fields) == ""


def test_of_several_missing_taints_only_those_that_this_change_removed_count() -> None:
    node = recorded("4-kubectl-removed-other-left")
    seen = TaintRemoval(before=(OTHER, OURS), after=(OTHER,), settled_s=60.0)
    earlier = as_our_taint(Taint(key="muster.dev/earlier", effect="NoSchedule"))
    gone = find_removers([as_our_taint(OURS), earlier], seen, node, POLICY, "muster-tainter")
    assert set(gone) == {as_our_taint(OURS)}


def test_a_taint_of_others_that_went_in_the_same_write_is_no_person() -> None:
    node = recorded("4-kubectl-removed-other-left")
    third = Taint(key="third", effect="NoSchedule")
    seen = TaintRemoval(before=(OTHER, OURS, third), after=(OTHER,), settled_s=60.0)
    assert find_removers([as_our_taint(OURS)], seen, node, POLICY, "muster-tainter") == {}
