"""Which numbers a node has, as labels or as resources."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.operator.visibility.capacities import controller, node

from muster_operator.observe.node_capacity import IPUS_FREE, IPUS_TOTAL
from muster_operator.visibility.advertisement import Advertising, NodePatch, plan_patch, plan_removal

LABELS, RESOURCES = Advertising("labels"), Advertising("resources")
NUMBERS = {IPUS_FREE: "4", IPUS_TOTAL: "16"}
NONE = {IPUS_FREE: None, IPUS_TOTAL: None}
HAS = {"muster.dev_ipus-free": "4", "muster.dev_ipus-total": "16"}


def test_labels_are_written_on_the_node_and_resources_on_its_status() -> None:
    served = node("n", "a")
    assert plan_patch(served, (controller("a", 4),), LABELS) == NodePatch(
        "/api/v1/nodes/n", {"metadata": {"labels": NUMBERS}}
    )
    assert plan_patch(served, (controller("a", 4),), RESOURCES) == NodePatch(
        "/api/v1/nodes/n/status", {"status": {"capacity": NUMBERS, "allocatable": NUMBERS}}
    )


def test_only_what_differs_is_written() -> None:
    assert plan_patch(node("n", "a", **HAS), (controller("a", 4),), LABELS) is None
    assert plan_patch(node("n", "a", free="4", total="16"), (controller("a", 4),), RESOURCES) is None
    found = plan_patch(node("n", "a", **HAS), (controller("a", 3),), LABELS)
    assert found is not None
    assert found.body == {"metadata": {"labels": {IPUS_FREE: "3"}}}


def test_a_node_that_no_controller_serves_has_none() -> None:
    assert plan_patch(node("n", "b"), (controller("a", 4),), LABELS) is None
    for left in (node("n", "b", **HAS), node("n", **HAS)):
        found = plan_patch(left, (controller("a", 4),), LABELS)
        assert found is not None
        assert found.body == {"metadata": {"labels": NONE}}


def test_the_numbers_of_several_controllers_of_a_node_are_added() -> None:
    twins = (controller("a", 4), controller("a", 1, total=8))
    found = plan_patch(node("n", "a"), twins, LABELS)
    assert found is not None
    assert found.body["metadata"]["labels"] == {IPUS_FREE: "5", IPUS_TOTAL: "24"}


def test_a_number_that_is_not_known_is_absent_and_not_zero() -> None:
    found = plan_patch(node("n", "a", **HAS), (controller("a", 4), controller("a", None)), LABELS)
    assert found is not None
    assert found.body == {"metadata": {"labels": NONE}}
    full = plan_patch(node("n", "a"), (controller("a", 0),), LABELS)
    assert full is not None
    assert full.body["metadata"]["labels"][IPUS_FREE] == "0"


@pytest.mark.parametrize("role", ["node-role.kubernetes.io_control-plane", "node-role.kubernetes.io_master"])
def test_nodes_of_the_control_plane_have_them_only_with_advertise_on_master(role: str) -> None:
    master = node("n", "a", **{role: ""})
    assert plan_patch(master, (controller("a", 4),), LABELS) is None
    found = plan_patch(master, (controller("a", 4),), Advertising("labels", on_control_plane=True))
    assert found is not None
    assert found.body == {"metadata": {"labels": NUMBERS}}


def test_removal_leaves_what_is_not_there_alone() -> None:
    assert plan_removal(node("n", "a", **HAS), "resources") is None
    assert plan_removal(node("n", "a", **HAS), "labels") == NodePatch("/api/v1/nodes/n", {"metadata": {"labels": NONE}})


@given(st.integers(0, 10**12))
def test_a_quantity_is_in_the_form_in_which_the_api_server_returns_it(number: int) -> None:
    found = plan_patch(node("n", "a"), (controller("a", number, total=1),), RESOURCES)
    assert found is not None
    text = found.body["status"]["capacity"][IPUS_FREE]
    digits, suffix = text.rstrip("kMGT"), text.lstrip("0123456789")
    assert int(digits) * 1000 ** " kMGT".index(suffix or " ") == number
    assert suffix == "T" or number == 0 or int(digits) % 1000
