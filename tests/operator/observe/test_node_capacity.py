"""Nodes that a job could go to, counted as they change."""

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from muster_kube.api.objects import Metadata, NodeCondition, Taint
from muster_operator.job.snapshot import NodeCapacity
from muster_operator.observe.node_capacity import (
    SELECTORS_LIMIT,
    TAINTED_SHOWN,
    CapacityIndex,
    FleetNode,
    FleetNodeSpec,
    FleetNodeStatus,
    is_healthy,
    is_spare,
    project_node,
    takes_pods,
)

OURS = ("muster.dev/faulty",)
OUR_SET = frozenset(OURS)


def node(
    name: str, *, rack: str = "a", ready: bool = True, cordoned: bool = False, taint: str = "", label: bool = False
) -> FleetNode:
    labels = {"rack": rack} | ({"muster.dev/faulty": "true"} if label else {})
    taints = (Taint(key=taint, effect="NoSchedule", value="x"),) if taint else ()
    conditions = (
        NodeCondition(type="MemoryPressure", status="False", last_heartbeat_time="now"),
        NodeCondition(type="Ready", status="True" if ready else "Unknown", reason="r", last_heartbeat_time="now"),
    )
    return project_node(
        FleetNode(
            metadata=Metadata(name=name, labels=labels, annotations={"big": "x" * 100}),
            spec=FleetNodeSpec(taints=taints, unschedulable=cordoned),
            status=FleetNodeStatus(conditions=conditions),
        )
    )


class Fleet:
    def __init__(self) -> None:
        self.nodes: dict[str, FleetNode] = {}
        self.rooms = 0
        self.places = CapacityIndex(self.nodes, OURS, self._room)

    def _room(self) -> None:
        self.rooms += 1

    def put(self, name: str, new: FleetNode | None) -> None:
        old = self.nodes.pop(name, None)
        if new is not None:
            self.nodes[name] = new
        self.places.note(name, old, new)


def test_only_nodes_that_take_pods_count_and_tainted_ones_are_not_healthy() -> None:
    fleet = Fleet()
    fleet.put("ok", node("ok"))
    fleet.put("lost", node("lost", ready=False))
    fleet.put("cordoned", node("cordoned", cordoned=True))
    fleet.put("tainted", node("tainted", taint="muster.dev/faulty"))
    fleet.put("labelled", node("labelled", label=True))
    fleet.put("others", node("others", taint="somebody.else/busy"))
    fleet.put("elsewhere", node("elsewhere", rack="b"))
    assert fleet.places.count({"rack": "a"}) == NodeCapacity(nodes=4, healthy=2, tainted=("labelled", "tainted"))
    assert fleet.places.count({}) == NodeCapacity(nodes=5, healthy=3, tainted=("labelled", "tainted"))
    assert fleet.places.count({"rack": "c"}) == NodeCapacity()


def test_spares_are_no_places_and_a_released_one_is() -> None:
    fleet = Fleet()
    fleet.put("ok", node("ok"))
    fleet.put("spare", node("spare", taint="muster.dev/spare"))
    assert fleet.places.count({"rack": "a"}) == NodeCapacity(nodes=1, healthy=1, spares=1)
    assert fleet.places.count({"rack": "a"}, ["spare"]) == NodeCapacity(nodes=1, healthy=1, spares=1)
    rooms = fleet.rooms
    fleet.put("spare", node("spare"))
    assert fleet.places.count({"rack": "a"}) == NodeCapacity(nodes=2, healthy=2)
    assert fleet.rooms == rooms + 1, "jobs that wait are woken"
    labelled = node("spare")
    labelled.metadata.labels["muster.dev/role"] = "spare"
    fleet.put("spare", labelled)
    assert fleet.places.count({"rack": "a"}) == NodeCapacity(nodes=1, healthy=1, spares=1)


def test_a_heartbeat_wakes_no_job() -> None:
    fleet = Fleet()
    fleet.put("n", node("n"))
    assert fleet.rooms == 1
    fleet.put("n", node("n"))
    assert fleet.rooms == 1
    fleet.put("n", node("n", taint="somebody.else/busy"))
    assert fleet.rooms == 1
    fleet.put("n", node("n", taint="muster.dev/faulty"))
    assert fleet.rooms == 2


def test_a_cached_node_is_small() -> None:
    kept = node("n", taint="muster.dev/faulty")
    assert kept.metadata.annotations == {}
    assert [each.type for each in kept.status.conditions] == ["Ready"]


STATES = st.one_of(
    st.none(),
    st.builds(
        lambda rack, ready, cordoned, taint: node("n", rack=rack, ready=ready, cordoned=cordoned, taint=taint),
        st.sampled_from("ab"),
        st.booleans(),
        st.booleans(),
        st.sampled_from(["", "muster.dev/faulty", "muster.dev/spare"]),
    ),
)


@given(st.lists(st.tuples(st.sampled_from("12345"), STATES), max_size=40))
def test_counts_are_those_of_the_whole_fleet_whatever_came_before(changes: list[tuple[str, FleetNode | None]]) -> None:
    fleet = Fleet()
    selectors: list[dict[str, str]] = [{}, {"rack": "a"}, {"rack": "b"}]
    for selector in selectors:
        fleet.places.count(selector)
    for name, state in changes:
        fleet.put(name, state and replace(state, metadata=replace(state.metadata, name=name)))
        for selector in selectors:
            those = [
                each
                for each in fleet.nodes.values()
                if takes_pods(each) and selector.items() <= each.metadata.labels.items()
            ]
            work = [each for each in those if not is_spare(each)]
            tainted = sorted(each.metadata.name for each in work if not is_healthy(each, OUR_SET))
            counted = NodeCapacity(
                nodes=len(work),
                healthy=len(work) - len(tainted),
                spares=len(those) - len(work),
                tainted=tuple(tainted[:TAINTED_SHOWN]),
            )
            assert fleet.places.count(selector) == counted


def test_unused_counts_are_dropped_and_recomputed() -> None:
    fleet = Fleet()
    fleet.put("n", node("n"))
    assert fleet.places.count({"rack": "a"}) == NodeCapacity(1, 1)
    for number in range(SELECTORS_LIMIT + 1):
        fleet.places.count({"other": str(number)})
    fleet.put("m", node("m"))
    assert fleet.places.count({"rack": "a"}) == NodeCapacity(2, 2)
