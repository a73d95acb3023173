"""Nodes of a cluster as groups of a fleet file, what their objects remember, and answers of a Prometheus."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.tainter.simulation.worlds import BEGIN, HOUR

from muster_kube.api.objects import Metadata, NodeCondition
from muster_kube.api.times import rfc3339
from muster_kube.nodehealth import NodeHealth
from muster_tainter.faults.record.node_record import ANNOTATION
from muster_tainter.simulation.history.files import fleet_document, fleet_text
from muster_tainter.simulation.history.fleet_groups import FleetGroups, PastNode, PastNodeStatus, make_groups
from muster_tainter.simulation.history.object_memory import remember_health, remember_node
from muster_tainter.simulation.history.past_faults import PastFaults
from muster_tainter.simulation.history.prometheus_history import decode_matrix
from muster_tainter.simulation.scenario.fault_file import UNTIL_REPAIRED
from muster_tainter.simulation.scenario.fleet_file import FleetFile, load_fleet
from muster_tainter.simulation.scenario.nodes import FleetNode, make_nodes
from muster_tainter.sources.http_client import SourceError

RACK = "topology.kubernetes.io/rack"


def node(name: str, gpus: int = 8, **labels: str) -> PastNode:
    named = {key.replace("__", "/").replace("_", "."): value for key, value in labels.items()}
    capacity = {"nvidia.com/gpu": str(gpus), "cpu": "64"} if gpus else {"cpu": "64"}
    metadata = Metadata(name=name, labels=named, creation_timestamp=rfc3339(BEGIN - HOUR))
    return PastNode(metadata=metadata, status=PastNodeStatus(capacity=capacity))


def groups(*nodes: PastNode, **more: Any) -> FleetGroups:
    options = {"watched": (), "label_keys": ("pool",), "domain": RACK, "begin": BEGIN, "faulty": {}, **more}
    return make_groups(nodes, **options)


def loaded(found: FleetGroups, folder: Path) -> tuple[FleetFile, list[FleetNode]]:
    path = folder / "fleet.yaml"
    path.write_text(fleet_text(fleet_document(found.groups, BEGIN, BEGIN + 24 * HOUR), ["a note"]))
    fleet = load_fleet(path)
    return fleet, make_nodes(fleet)


def test_groups_come_back_as_the_same_nodes(tmp_path: Path) -> None:
    racked = [
        node(f"n{number}", pool="train", nvidia_com__gpu_product="NVIDIA-H100", topology_kubernetes_io__rack=f"r{rack}")
        for rack in range(3)
        for number in range(rack * 4, rack * 4 + 4)
    ]
    fleet, nodes = loaded(groups(*racked, node("a1", 4), node("cpu", 0)), tmp_path)
    assert [(group.name, group.size, group.devices) for group in fleet.groups] == [
        ("nvidia-h100", 12, 8),
        ("nodes", 1, 4),
    ]
    assert {each.name: each.domain for each in nodes} == {**{f"n{n}": f"r{n // 4}" for n in range(12)}, "a1": ""}
    assert nodes[0].labels == {"pool": "train", RACK: "r0"}


def test_nodes_that_muster_watches_count_without_accelerators() -> None:
    found = groups(node("ipu", 0), node("cpu", 0), watched={"ipu"})
    assert (found.names, found.without_accelerators, found.counted_as_one) == ({"ipu"}, 1, 1)


def test_nodes_that_are_gone_stay_in_the_fleet_but_no_more_than_there_are(tmp_path: Path) -> None:
    present = [node(f"n{number}", topology_kubernetes_io__rack="r") for number in range(4)]
    found = groups(*present, faulty={"n1": 1, "old": 2, **{f"invented-{n}": 1 for n in range(50)}})
    assert len(found.gone) == 4
    assert len(loaded(found, tmp_path)[1]) == 8


def test_jobs_fit_the_smallest_fleet(tmp_path: Path) -> None:
    fleet, _ = loaded(groups(node("only")), tmp_path)
    assert [kind.nodes for kind in fleet.workload.kinds] == [1]


def test_models_with_equal_words_are_different_groups(tmp_path: Path) -> None:
    found = groups(node("a", nvidia_com__gpu_product="H100 80GB"), node("b", nvidia_com__gpu_product="h100-80gb"))
    fleet, _ = loaded(found, tmp_path)
    assert len({group.name for group in fleet.groups}) == 2


# what the objects remember


def remembered(record: dict[str, Any] | str, **status: Any) -> tuple[PastFaults, bool]:
    text = record if isinstance(record, str) else json.dumps(record)
    faults = PastFaults(BEGIN, BEGIN + 24 * HOUR)
    kept = Metadata(name="n1", annotations={ANNOTATION: text})
    return faults, remember_node(PastNode(metadata=kept, status=PastNodeStatus(**status)), faults)


def test_record_of_a_node() -> None:
    at = {hour: rfc3339(BEGIN + hour * HOUR) for hour in range(1, 9)}
    gpu = {"check": "dmesg", "component": "gpu/0", "occurrence": 1}
    record = {
        "open": [
            {**gpu, "reason": "Xid79", "class": "reboot", "since": at[6], "firstSeen": at[5]},
            {**gpu, "component": "gpu/1", "reason": "Xid95", "class": "reset", "since": at[4], "over": at[8]},
        ],
        "closed": [{**gpu, "reason": "Xid48", "since": at[1], "closedAt": at[2]}],
    }
    faults, readable = remembered(record)
    assert readable
    found = [((row.start - BEGIN) / HOUR, row.fault_class, row.end == UNTIL_REPAIRED) for row in faults.rows().rows]
    assert found == [(1, "contact", False), (4, "reset", False), (5, "reboot", True)]


def test_unreadable_record_is_reported() -> None:
    assert not remembered("[")[1]


def test_node_that_is_not_ready_now() -> None:
    since = rfc3339(BEGIN + HOUR)
    faults, _ = remembered({}, conditions=(NodeCondition(type="Ready", status="Unknown", last_transition_time=since),))
    (row,) = faults.rows().rows
    assert (row.reason, row.start, row.end) == ("NotReady", BEGIN + HOUR, UNTIL_REPAIRED)


def test_findings_of_now() -> None:
    def found(verdict: str) -> dict[str, Any]:
        seen = rfc3339(BEGIN + HOUR)
        return {
            "component": f"gpu/{verdict}",
            "reason": "Xid79",
            "verdict": verdict,
            "class": "reset",
            "firstSeen": seen,
        }

    status = {"checks": [{"name": "dmesg", "verdict": "FAIL", "findings": [found("FAIL"), found("WARN")]}]}
    health = msgspec.convert({"metadata": {"name": "n1"}, "status": status}, NodeHealth)
    faults = PastFaults(BEGIN, BEGIN + 24 * HOUR)
    remember_health(health, faults)
    (row,) = faults.rows().rows
    assert (row.component, row.fault_class, row.end) == ("gpu/FAIL", "reset", UNTIL_REPAIRED)


# answers


def matrix(*series: object, **more: object) -> bytes:
    body = {"status": "success", "data": {"resultType": "matrix", "result": list(series)}, **more}
    return json.dumps(body).encode()


def test_answer_and_a_series_that_cannot_be_read() -> None:
    good = {"metric": {"node": "n1"}, "values": [[BEGIN, "1"], [BEGIN + 60, "1"]]}
    (found,) = decode_matrix(matrix(good, {"metric": 3}, {"metric": {}, "values": [[1, "x"]]}))
    assert (found.labels, found.times, found.values) == ({"node": "n1"}, [BEGIN, BEGIN + 60], [1.0, 1.0])


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html>",
        b"[" * 100_000,
        json.dumps({"status": "error", "data": {"resultType": "", "result": []}}).encode(),
        json.dumps({"status": "success", "data": {"resultType": "vector", "result": []}}).encode(),
        matrix(warnings=["a store did not answer"]),
    ],
    ids=["empty", "page", "deep", "error", "vector", "incomplete"],
)
def test_unusable_answer(body: bytes) -> None:
    with pytest.raises(SourceError):
        list(decode_matrix(body))
