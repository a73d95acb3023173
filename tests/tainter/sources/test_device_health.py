"""Devices that the status of pods reports as unhealthy: which device that is, and how its finding begins and ends."""

import asyncio
from typing import Any

import msgspec
import pytest
from tests.tainter.devices.device_world import DRIVER, address, device, read_slice, resource_slice, uuid
from tests.tainter.fake_fleet import FakeFleet

from muster_kube.api.errors import Unreachable
from muster_kube.api.objects import Metadata, Node
from muster_kube.api.times import rfc3339
from muster_kube.nodehealth import ClearedFault, ReportedFinding
from muster_tainter.devices.slices.device_map import NO_DEVICES, NodeDevices, map_devices
from muster_tainter.faults.external_findings import ExternalFindings
from muster_tainter.faults.record.node_record import ANNOTATION, ClosedFault, Fault, NodeRecord, encode_record
from muster_tainter.policy.file import PolicyError, parse_policy
from muster_tainter.policy.sections.sources import DeviceHealthSource
from muster_tainter.sources.device_health.feed import DevicePods
from muster_tainter.sources.device_health.findings import REASON, REPORTS_LIMIT, DeviceHealthFindings
from muster_tainter.sources.device_health.pod_status import (
    DEVICES_LIMIT,
    DevicePod,
    HeldDevice,
    component_of,
    message_of,
    slim_pod,
)
from muster_tainter.sources.loki.finding_tracker import QUIET_S

NOW = 1.8e9
CLAIM_UID = "0d4f9a1e-8a54-4b0e-9d0a-2f7f1f0a1b2c"
NICS = "dra.net"


def devices_of_node(*slices: dict[str, Any]) -> NodeDevices:
    return map_devices([read_slice(each) for each in slices or (resource_slice(),)], {})


def held(device_id: str, resource: str = "claim:gpus/gpu", *, healthy: bool = False) -> HeldDevice:
    return HeldDevice(resource, device_id, healthy, "")


@pytest.mark.parametrize(
    ("resource", "device_id", "component"),
    [
        ("nvidia.com/gpu", uuid(1), f"gpu/{uuid(1)}"),
        ("amd.com/gpu", "0000:C1:00.0", "gpu/0000:c1:00.0"),
        ("example.com/rdma_vf", "0000:3b:00.2", "nic/0000:3b:00.2"),
        ("example.com/fpga", "0000:3b:00.2", "device/0000:3b:00.2"),
        ("nvidia.com/mig-1g.10gb", "MIG-1", "device/MIG-1"),
        ("claim:gpus", f"{DRIVER}/n1/gpu-1", f"gpu/{address(1)}"),
        ("claim:gpus", f"{DRIVER}/n2/gpu-1", f"device/{DRIVER}/n2/gpu-1"),
        ("claim:gpus/gpu", f"k8s.{DRIVER}/claim={CLAIM_UID}-gpu-1", f"gpu/{address(1)}"),
        ("claim:gpus/gpu", f"k8s.{DRIVER}/device=gpu-2", f"gpu/{address(2)}"),
        ("claim:gpus/gpu", f"k8s.{DRIVER}/claim={CLAIM_UID}-gpu-7", f"device/k8s.{DRIVER}/claim={CLAIM_UID}-gpu-7"),
        ("nvidia.com/gpu", "gpu-1", "device/gpu-1"),  # a name of another API is no name of this one
    ],
)
def test_the_component_is_the_device_of_that_node(resource: str, device_id: str, component: str) -> None:
    assert component_of(held(device_id, resource), devices_of_node()) == component


def test_without_slices_a_claims_device_has_its_own_name_and_keeps_it_bounded() -> None:
    name = f"k8s.{DRIVER}/claim={CLAIM_UID}-gpu-1"
    assert component_of(held(name), NO_DEVICES) == f"device/{name}"
    assert len(component_of(held("x" * 5000), NO_DEVICES)) <= 128


def test_the_longest_name_counts_and_two_drivers_are_told_apart_by_the_vendor() -> None:
    devices = [device(0, "gpu-1"), device(1, "mig-gpu-1")]
    nics = resource_slice(driver=NICS, pool="nics", devices=[device(5, "mig-gpu-1")])
    node = devices_of_node(resource_slice(devices=devices), nics)
    cdi = f"claim={CLAIM_UID}-mig-gpu-1"
    assert component_of(held(f"k8s.{DRIVER}/{cdi}"), node) == f"gpu/{address(1)}"
    assert component_of(held(f"k8s.{NICS}/{cdi}"), node) == f"nic/{address(5)}"
    assert component_of(held(f"unknown.example/{cdi}"), node).startswith("device/")


def pod_object(
    *resources: dict[str, Any], node: str = "n1", name: str = "a", start: float = NOW - 600, uid: str = ""
) -> DevicePod:
    metadata = {"name": name, "namespace": "team", "uid": uid or f"uid-{name}", "annotations": {"large": "x" * 999}}
    found = {
        "metadata": metadata,
        "spec": {"nodeName": node},
        "status": {
            "phase": "Running",
            "startTime": rfc3339(start),
            "containerStatuses": [
                {"name": "main", "allocatedResourcesStatus": [{"name": "nvidia.com/gpu", "resources": list(resources)}]}
            ],
        },
    }
    return slim_pod(msgspec.json.decode(msgspec.json.encode(found), type=DevicePod))


def health(number: int, word: str) -> dict[str, str]:
    return {"resourceID": uuid(number), "health": word}


def test_only_devices_that_are_healthy_or_not_are_kept_and_the_worse_word_counts() -> None:
    pod = pod_object(health(0, "Healthy"), health(1, "Unknown"), health(2, ""), health(3, "Unhealthy"))
    assert [(each.id, each.healthy) for each in pod.held] == [(uuid(0), True), (uuid(3), False)]
    assert pod.metadata.annotations == {}
    for words in (("Healthy", "Unhealthy"), ("Unhealthy", "Healthy")):
        (only,) = pod_object(*(health(0, word) for word in words)).held
        assert not only.healthy


def test_a_pod_with_thousands_of_devices_and_long_texts_is_bounded() -> None:
    many = [{"resourceID": f"{n}-" + "x" * 5000, "health": "Unhealthy", "message": "m" * 40_000} for n in range(5000)]
    pod = pod_object(*many)
    assert len(pod.held) == DEVICES_LIMIT
    assert len(msgspec.json.encode(pod)) < 400 * DEVICES_LIMIT
    assert len(message_of(pod.held[0], pod).encode()) <= 256


def test_only_pods_with_devices_are_stored() -> None:
    pods = DevicePods()
    pods["a"] = pod_object()
    assert not pods
    pods["a"] = pod_object(health(0, "Healthy"))
    assert list(pods) == ["a"]
    pods["a"] = pod_object()
    assert not pods


class Findings(ExternalFindings):
    def __init__(self) -> None:
        super().__init__(lambda _: None)
        self.found: list[ReportedFinding] = []
        self.over: list[ClearedFault] = []

    def add(self, node: str, check: str, finding: ReportedFinding) -> None:
        assert check == "devicehealth"
        self.found.append(finding)
        super().add(node, check, finding)

    def close(self, node: str, check: str, cleared: ClearedFault) -> None:
        self.over.append(cleared)
        super().close(node, check, cleared)


class Bed:
    """One node, and what a leader concludes from its pods."""

    def __init__(self, **settings: Any) -> None:
        self.now = NOW
        self.told = Findings()
        self.nodes = {"n1": Node(metadata=Metadata(name="n1"))}
        self.fleet = FakeFleet(nodes=self.nodes, external_findings=self.told)
        self.settings = DeviceHealthSource.model_validate(settings)
        self.pods: dict[str, DevicePod] = {}
        self.lead()

    def lead(self) -> None:
        """A new leader, which reads the pods again."""
        self.findings = DeviceHealthFindings(self.fleet, lambda _: NO_DEVICES, self.settings)
        self.findings.adopt(self.now)
        for key, pod in self.pods.items():
            self.findings.pod_changed(key, None, pod, self.now)

    def put(self, name: str, *resources: dict[str, Any], **fields: Any) -> None:
        pod = pod_object(*resources, name=name, **fields)
        self.findings.pod_changed(name, self.pods.get(name), pod, self.now)
        self.pods[name] = pod

    def verify(self, **newest: DevicePod | None) -> None:
        """As the feed does after each look. newest: pods as etcd has them, where that is not what the watch has."""

        async def read(key: str) -> DevicePod | None:
            return newest[key] if key in newest else self.pods.get(key)

        asyncio.run(self.findings.verify(read, self.now))

    def drop(self, name: str) -> None:
        self.findings.pod_changed(name, self.pods.pop(name), None, self.now)

    def wait(self, seconds: float) -> None:
        for _ in range(int(seconds // 300)):
            self.now += 300
            asyncio.run(self.findings.look(self.now))

    def close(self, finding: ReportedFinding) -> None:
        """A person has cleared the fault."""
        closed = ClosedFault(
            "devicehealth",
            finding.component,
            REASON,
            occurrence=finding.occurrence,
            closed_at=rfc3339(self.now),
            how="person",
        )
        text = encode_record(NodeRecord(closed=(closed,)))
        self.nodes["n1"] = Node(metadata=Metadata(name="n1", annotations={ANNOTATION: text}))


def test_by_default_an_unhealthy_device_is_a_warning_that_asks_for_nothing() -> None:
    bed = Bed()
    bed.put("a", health(1, "Unhealthy"))
    (finding,) = bed.told.found
    assert (finding.component, finding.reason, finding.verdict, finding.fault_class) == (
        f"gpu/{uuid(1)}", REASON, "WARN", "",
    )  # fmt: skip


def test_a_policy_can_make_it_a_failure_of_a_class() -> None:
    bed = Bed(verdict="FAIL", **{"class": "reset"})
    bed.put("a", health(1, "Unhealthy"))
    assert [(each.verdict, each.fault_class) for each in bed.told.found] == [("FAIL", "reset")]


def test_it_ends_when_the_device_is_reported_as_healthy_by_any_pod() -> None:
    bed = Bed(verdict="FAIL")
    bed.put("a", health(1, "Unhealthy"))
    bed.drop("a")
    bed.wait(2 * QUIET_S)
    assert bed.told.over == []
    bed.put("b", health(1, "Healthy"))
    bed.verify()
    assert [(each.component, each.how) for each in bed.told.over] == [(f"gpu/{uuid(1)}", "source")]


def in_record(bed: Bed) -> None:
    """The fault is in the Node's record, as the leader that found it left it."""
    (finding,) = bed.told.found
    fault = Fault(
        check="devicehealth", component=finding.component, reason=REASON, occurrence=finding.occurrence, verdict="FAIL"
    )
    text = encode_record(NodeRecord(open=(fault,)))
    bed.nodes["n1"] = Node(metadata=Metadata(name="n1", annotations={ANNOTATION: text}))


@pytest.mark.parametrize(
    ("newest", "ends"),
    [
        (pod_object(health(1, "Healthy")), 1),
        (pod_object(health(1, "Unhealthy")), 0),
        (pod_object(), 0),
        (None, 0),
        (pod_object(health(1, "Healthy"), name="another"), 0),
    ],
)
def test_a_new_leaders_first_list_may_be_older_than_the_fault(newest: DevicePod | None, ends: int) -> None:
    bed = Bed(verdict="FAIL")
    bed.put("a", health(1, "Unhealthy"))
    in_record(bed)
    bed.pods["a"] = pod_object(health(1, "Healthy"))
    bed.lead()
    assert bed.told.over == []
    bed.verify(a=newest)
    assert len(bed.told.over) == ends


def test_a_pod_that_cannot_be_read_is_verified_the_next_time() -> None:
    bed = Bed(verdict="FAIL")
    bed.put("a", health(1, "Unhealthy"))
    in_record(bed)
    bed.pods["a"] = pod_object(health(1, "Healthy"))
    bed.lead()

    async def away(key: str) -> DevicePod | None:
        raise Unreachable("no answer", key)

    with pytest.raises(Unreachable):
        asyncio.run(bed.findings.verify(away, bed.now))
    assert bed.told.over == []
    bed.verify()
    assert len(bed.told.over) == 1


def bed_with_a_pod_to_verify() -> Bed:
    """A new leader sees pod ``a`` with a healthy device that has an open fault."""
    bed = Bed(verdict="FAIL")
    bed.put("a", health(1, "Unhealthy"))
    in_record(bed)
    bed.pods["a"] = pod_object(health(1, "Healthy"))
    bed.lead()
    return bed


def test_a_pod_that_goes_while_it_is_read_ends_nothing() -> None:
    bed = bed_with_a_pod_to_verify()

    async def read(key: str) -> DevicePod | None:
        newest = bed.pods[key]
        bed.drop(key)
        return newest

    asyncio.run(bed.findings.verify(read, bed.now))
    assert bed.told.over == []


@pytest.mark.parametrize("seen_going", [True, False])
def test_a_successor_of_the_same_name_is_verified_in_its_turn(seen_going: bool) -> None:
    bed = bed_with_a_pod_to_verify()
    asked: list[str] = []

    async def read(key: str) -> DevicePod | None:
        newest = bed.pods[key]
        asked.append(newest.metadata.uid)
        if len(asked) == 1:
            if seen_going:
                bed.drop(key)
            bed.put(key, health(1, "Healthy"), uid="second")
            return None
        return newest

    asyncio.run(bed.findings.verify(read, bed.now))
    assert (asked, len(bed.told.over)) == (["uid-a", "second"], 1)


def test_an_answer_that_is_older_than_the_watch_ends_nothing() -> None:
    bed = bed_with_a_pod_to_verify()

    async def read(key: str) -> DevicePod | None:
        newest = bed.pods[key]
        bed.put(key, health(1, "Unhealthy"))
        return newest

    asyncio.run(bed.findings.verify(read, bed.now))
    assert bed.told.over == []
    bed.put("a", health(1, "Healthy"))
    assert len(bed.told.over) == 1


def test_one_kubelet_with_twenty_thousand_devices_leaves_room_for_other_nodes(caplog: pytest.LogCaptureFixture) -> None:
    bed = Bed()
    bed.nodes["n2"] = Node(metadata=Metadata(name="n2"))
    for number in range(157):
        devices = [{"resourceID": f"{number}-{n}", "health": "Unhealthy"} for n in range(DEVICES_LIMIT)]
        bed.put(f"forged-{number}", *devices)
    bed.put("honest", health(1, "Unhealthy"), node="n2")
    assert [component for _, component, _ in bed.told.of("n2")[0]] == [f"gpu/{uuid(1)}"]
    assert [record.args for record in caplog.records] == [("n1", REPORTS_LIMIT)]


def test_pods_that_are_gone_make_room_for_further_reports_of_their_node() -> None:
    bed = Bed()
    names = [f"p{number}" for number in range(REPORTS_LIMIT + 1)]
    for name in names:
        bed.put(name, health(1, "Unhealthy"))
    bed.put(names[0], health(1, "Healthy"))
    for name in names[1:]:
        bed.drop(name)
    for name in names:
        bed.put(f"again-{name}", health(2, "Unhealthy"))
        bed.drop(f"again-{name}")
    bed.put("last", health(3, "Unhealthy"))
    assert bed.told.found[-1].component == f"gpu/{uuid(3)}"


async def test_a_look_at_the_reports_of_many_nodes_lets_other_tasks_run() -> None:
    bed = Bed()
    for number in range(50):
        name = f"n1-{number}"
        bed.nodes[name] = Node(metadata=Metadata(name=name))
        bed.put(name, health(1, "Unhealthy"), node=name)
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    other = asyncio.create_task(others())
    await bed.findings.look(bed.now)
    other.cancel()
    assert turns >= 50


def test_first_sight_of_a_healthy_device_without_a_fault_asks_nothing() -> None:
    bed = Bed()
    bed.put("a", health(1, "Healthy"))

    async def unexpected(key: str) -> DevicePod | None:
        raise AssertionError(key)

    asyncio.run(bed.findings.verify(unexpected, bed.now))


def test_a_warning_stays_while_a_pod_reports_it_and_ends_an_hour_after_the_pod() -> None:
    bed = Bed()
    bed.put("a", health(1, "Unhealthy"))
    bed.wait(5 * QUIET_S)
    assert bed.told.over == []
    bed.drop("a")
    bed.wait(QUIET_S / 2)
    assert bed.told.over == []
    bed.wait(QUIET_S)
    assert [each.how for each in bed.told.over] == ["quiet"]


def test_what_a_person_has_cleared_is_not_opened_again_by_the_same_report_not_even_by_a_new_leader() -> None:
    bed = Bed()
    bed.put("a", health(1, "Unhealthy"))
    bed.close(bed.told.found[0])
    bed.told.found.clear()
    bed.wait(2 * QUIET_S)
    bed.lead()
    bed.wait(QUIET_S)
    assert bed.told.found == []


def test_a_device_that_recovers_and_fails_again_is_a_new_occurrence() -> None:
    bed = Bed()
    bed.put("a", health(1, "Unhealthy"))
    first = bed.told.found[0]
    bed.close(first)
    bed.wait(300)
    bed.put("a", health(1, "Healthy"))
    bed.wait(300)
    bed.put("a", health(1, "Unhealthy"))
    assert bed.told.found[-1].occurrence > first.occurrence


def test_a_pod_that_began_after_the_clear_reports_anew() -> None:
    bed = Bed()
    bed.put("a", health(1, "Unhealthy"))
    bed.close(bed.told.found[0])
    bed.told.found.clear()
    bed.wait(600)
    bed.put("b", health(1, "Unhealthy"), start=bed.now - 60)
    assert len(bed.told.found) == 1


def test_pods_of_unknown_nodes_and_unknown_health_say_nothing() -> None:
    bed = Bed()
    bed.put("a", health(1, "Unhealthy"), node="forged")
    bed.put("b", health(1, "Unknown"))
    bed.put("c", health(1, "Unhealthy"))
    bed.put("c", health(1, "Unknown"))
    assert len(bed.told.found) == 1
    assert bed.told.over == []


def test_it_is_off_by_default_and_its_verdict_is_one_of_two() -> None:
    assert parse_policy("rules: []").sources.device_health is None
    assert parse_policy("rules: []\nsources: {deviceHealth: {}}").sources.device_health == DeviceHealthSource()
    with pytest.raises(PolicyError) as refused:
        parse_policy("rules: []\nsources: {deviceHealth: {verdict: PASS}}")
    assert "sources.deviceHealth.verdict" in str(refused.value)
