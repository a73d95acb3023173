"""Where a pod that asks for IPUs may go, and where best."""

import pytest
from tests.operator.visibility.capacities import controller

from muster_operator.job.ipu_pod import ANNOTATION
from muster_operator.job.partition_api import PartitionEntry
from muster_operator.visibility.extender import (
    HostPriority,
    IpuRequest,
    IpuState,
    filter_nodes,
    read_request,
    score_nodes,
)

LABELS = {"a1": {"ipunode": "a"}, "b1": {"ipunode": "b"}, "b2": {"ipunode": "b"}, "cpu": {"zone": "x"}}


def state(*controllers: object, error: str = "") -> IpuState:
    return IpuState(controllers or None, error, LABELS)  # type: ignore[arg-type] # only ControllerCapacity


FOUR = IpuRequest(4)


@pytest.mark.parametrize("text", ["0", "-1", "3", "1000000", "65", "128", "four", "", "4.0", "٤", "9" * 400])
def test_an_annotation_that_no_partition_can_have_is_an_error(text: str) -> None:
    found = read_request(text, 64)
    assert found is not None
    assert found.ipus is None
    assert [fact for fact in (ANNOTATION, "64", text[:20]) if fact not in found.error] == []
    assert len(found.error) < 200


def test_an_annotation_is_a_power_of_two() -> None:
    assert read_request(None, 64) is None
    assert [read_request(text, 64) for text in ("1", "64")] == [IpuRequest(1), IpuRequest(64)]


def test_a_pod_without_the_annotation_goes_anywhere() -> None:
    found = filter_nodes(["a1", "cpu", "nowhere"], None, (), state())
    assert (found.node_names, found.failed_nodes) == (["a1", "cpu", "nowhere"], {})


def test_nodes_are_left_whose_controller_has_a_large_enough_block() -> None:
    found = filter_nodes(LABELS, FOUR, (), state(controller("a", 6, largest=2), controller("b", 4)))
    assert found.node_names == ["b1", "b2"]
    assert set(found.failed_nodes) == {"a1", "cpu"}
    assert [fact for fact in ("a:8090", "6 free", "2 in one") if fact not in found.failed_nodes["a1"]] == []
    assert "ipunode=a" in found.failed_nodes["cpu"]


def test_a_controller_without_a_label_serves_every_node() -> None:
    anywhere = controller("a", 4)
    anywhere = type(anywhere)(anywhere.controller, "", anywhere.ipus)
    assert filter_nodes(["cpu"], FOUR, (), state(anywhere)).node_names == ["cpu"]


def test_unknown_nodes_a_silent_controller_and_an_absent_proxy_are_named() -> None:
    found = filter_nodes(["ghost", "a1"], FOUR, (), state(controller("a", None)))
    assert found.node_names == []
    assert "unknown node" in found.failed_nodes["ghost"]
    assert "a:8090" in found.failed_nodes["a1"]
    away = filter_nodes(["a1"], FOUR, (), state(error="nothing listens"))
    assert (away.node_names, "nothing listens" in away.failed_nodes["a1"]) == ([], True)


def test_a_wrong_annotation_fits_nowhere() -> None:
    found = filter_nodes(["a1"], IpuRequest(None, "annotation: odd"), (), state(controller("a", 16)))
    assert found.failed_nodes == {"a1": "annotation: odd"}


def test_a_pod_with_a_partition_goes_where_it_is_however_few_are_free() -> None:
    entry = PartitionEntry(job="u", namespace="ns", name="n", selector="ipunode=b")
    full = state(controller("a", 16), controller("b", 0))
    found = filter_nodes(["a1", "b1"], FOUR, [entry], full)
    assert found.node_names == ["b1"]
    assert "ipunode=b" in found.failed_nodes["a1"]
    assert filter_nodes(["a1", "b1"], None, [entry], full).node_names == ["b1"]


def test_the_first_controller_with_room_is_the_best() -> None:
    names = ["a1", "b1", "b2", "cpu"]
    both = state(controller("b", 8), controller("a", 16))
    assert [each.score for each in score_nodes(names, FOUR, (), both)] == [9, 10, 10, 0]
    first_full = state(controller("b", 2), controller("a", 16))
    assert [each.score for each in score_nodes(names, FOUR, (), first_full)] == [10, 0, 0, 0]
    many = state(*(controller(f"c{number}", 16) for number in range(20)), controller("a", 16))
    assert score_nodes(["a1"], FOUR, (), many) == [HostPriority("a1", 1)]
    assert score_nodes(["a1"], None, (), both) == [HostPriority("a1", 0)]


def test_reasons_are_short_however_many_controllers_serve_a_node() -> None:
    twins = [
        type(one)(f"c{number}:8090", "ipunode=a", one.ipus) for number in range(256) for one in [controller("a", 1)]
    ]
    found = filter_nodes(["a1", "cpu"], FOUR, (), state(*twins))
    assert max(map(len, found.failed_nodes.values())) <= 300
