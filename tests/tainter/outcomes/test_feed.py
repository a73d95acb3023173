"""From pods that end to findings of nodes, as the leader runs it; the API server is real in tests/cluster."""

from typing import Any

import pytest
from tests.tainter.outcomes.leading_tainter import REJECTED, Cluster, opened, reject_until_found
from tests.tainter.outcomes.pod_objects import (
    ALLOCATE,
    NONE_FREE,
    NOW,
    decoded,
    ended,
    outcome,
    pod_object,
    reduced,
    restarted,
    running,
    waiting,
)

from muster_kube.api.objects import Metadata
from muster_kube.nodehealth import NodeHealth, NodeHealthStatus


@pytest.mark.parametrize("history", [0, 500])
def test_a_node_that_rejects_the_pods_of_one_controller_is_found_within_five(history: int) -> None:
    cluster = Cluster()
    for i in range(history):
        cluster.now += 30
        cluster.end(f"n{i % cluster.size}", phase="Succeeded", gpus=1)
    assert reject_until_found(cluster) <= 5
    [(node, finding)] = cluster.findings.found
    assert (node, finding.component, finding.reason) == ("n0", "host", "DeviceAllocation")
    assert (finding.verdict, finding.fault_class) == ("FAIL", "reboot")
    measured = {each.name: each for each in finding.measurements}
    assert measured["evidence"].value >= (measured["evidence"].threshold or 0) > 0
    assert measured["failed_attempts"].value <= 5
    assert cluster.value("proven_total", kind="DeviceAllocation") == 1


def test_the_only_node_of_a_fleet_is_found_for_what_no_tenant_controls_alone() -> None:
    cluster = Cluster(size=1)
    for turn in range(40):
        cluster.job(f"job-{turn}", f"ns-{turn % 3}", lambda _: True)
        cluster.watch.look()
    assert cluster.findings.found == []
    assert reject_until_found(cluster) <= 5


def test_pods_without_devices_that_do_well_do_not_hide_it() -> None:
    cluster = Cluster()
    for _ in range(3):
        cluster.now += 11.5
        cluster.end("n0", **REJECTED)
        for _ in range(10):
            cluster.end("n0", phase="Succeeded", namespace="hides")
    assert reject_until_found(cluster) <= 2


def test_a_burst_of_rejections_at_one_moment_is_one_attempt() -> None:
    cluster = Cluster()
    for _ in range(200):
        cluster.end("n0", **REJECTED)
    assert cluster.findings.found == []


@pytest.mark.parametrize(
    "why",
    [
        NONE_FREE,
        ALLOCATE + "rpc error: code = Unknown desc = invalid allocation request for 'nvidia.com/gpu': maximum request "
        "size for shared resources is 1; found 2, which is unexpected",
        # HAMi, of a pod that did not come through its scheduler (Project-HAMi/HAMi 71)
        ALLOCATE + "rpc error: code = Unavailable desc = error reading from server: EOF, which is unexpected",
    ],
)
def test_a_tenant_with_node_name_cannot_have_a_node_taken_away(why: str) -> None:
    """Its pods go around the scheduler: to a node that is full, or with a request that the plug-in does not grant."""
    cluster = Cluster()
    for _ in range(60):
        cluster.now += 11.5
        cluster.end("n0", **REJECTED | {"message": why})
        cluster.watch.look()
    assert cluster.findings.found == []
    assert cluster.value("failures_total", kind="Admission") == 60


def test_rejections_for_devices_that_the_node_does_not_offer_prove_nothing() -> None:
    """While a device plug-in is replaced, only spec.nodeName brings pods to the node."""
    cluster = Cluster(gpus=0)
    gone = ALLOCATE + "no healthy devices present; cannot allocate unhealthy devices nvidia.com/gpu"
    for _ in range(60):
        cluster.now += 11.5
        cluster.end("n0", **REJECTED | {"message": gone})
    assert cluster.findings.found == []


def test_such_rejections_prove_nothing_when_the_node_offers_the_devices_again_and_the_pods_are_read_again() -> None:
    """A new leader, or a new policy: nobody knows what the node offered when these pods failed."""
    cluster = Cluster(gpus=0)
    for _ in range(8):
        cluster.now += 11.5
        cluster.end("n0", **REJECTED)
    cluster.offer(8)
    cluster.now += 600
    cluster.lead()
    cluster.watch.look()
    assert cluster.findings.found == []
    assert cluster.value("failures_total", kind="DeviceAllocation") == 0


@pytest.mark.parametrize("before", [1, 2])
def test_a_node_that_rejects_every_pod_is_found_within_five_later_ones_when_the_leader_changes(before: int) -> None:
    cluster = Cluster()
    for _ in range(before):
        cluster.now += 11.5
        cluster.end("n0", **REJECTED)
    assert cluster.findings.found == []
    cluster.lead()
    assert reject_until_found(cluster) <= 5
    [(node, finding)] = cluster.findings.found
    assert (node, finding.reason, finding.verdict) == ("n0", "DeviceAllocation", "FAIL")


def test_an_open_fault_outlives_the_leader_that_proved_it() -> None:
    cluster = Cluster()
    reject_until_found(cluster)
    [(_, finding)] = cluster.findings.found
    cluster.record("n0", opened(finding))
    cluster.lead()
    cluster.watch.look()
    assert cluster.findings.over == []


def test_a_bad_node_is_warned_about_if_two_namespaces_fail_there() -> None:
    cluster = Cluster(size=60)
    for turn in range(40):
        cluster.job(f"job-{turn}", f"ns-{turn % 2}", lambda node: node == "n7")
        cluster.watch.look()
        if cluster.findings.found:
            break
    [(node, finding)] = cluster.findings.found
    assert (node, finding.reason, finding.verdict, finding.fault_class) == ("n7", "ApplicationExit", "WARN", "")


def test_one_namespace_cannot_have_a_node_taken_away() -> None:
    cluster = Cluster(size=60)
    for turn in range(20):
        cluster.job(f"job-{turn}", "ns", lambda node: node == "n7")
        cluster.watch.look()
    assert cluster.findings.found == []


def test_a_bad_image_and_a_bad_user_are_their_own_fault() -> None:
    cluster = Cluster(size=40, policy={"startWithin": "1m"})
    for turn in range(10):
        cluster.job(f"user-{turn}", f"ns-{turn % 3}", lambda _: True)
        pull = {"phase": "Pending", "containers": [waiting("ImagePullBackOff")]}
        cluster.job(f"image-{turn}", f"ns-{turn % 3}", lambda _: True, **pull)
        cluster.watch.look()
    assert cluster.findings.found == []


def test_a_pod_that_does_not_start_counts_after_its_time_and_once() -> None:
    cluster = Cluster(policy={"startWithin": "10m"})
    pod = reduced(pod_object("p", phase="Pending", node="n1", containers=[waiting("ErrImagePull")], bound=NOW))
    assert pod.outcome is not None
    cluster.now += 599
    cluster.watch.look_at_pending(pod.outcome)
    assert cluster.value("failures_total", kind="ImagePull") == 0
    for _ in range(3):
        cluster.now += 30
        cluster.watch.look_at_pending(pod.outcome)
    assert cluster.value("failures_total", kind="ImagePull") == 1
    done = reduced(pod_object("p", phase="Succeeded", node="n1")).outcome
    assert done is not None
    cluster.watch.take(done)
    assert cluster.value("pods_total", result="succeeded") == 0


def test_a_container_that_restarts_in_place_counts_once_and_its_end_does_not() -> None:
    cluster = Cluster()
    for number in range(1, 5):
        restart = restarted("OOMKilled", exit_code=137, at=NOW + number * 60)
        found = running(pod_object("p", phase="Running", containers=[restart]))
        assert found is not None
        cluster.now = NOW + number * 60 + 5
        cluster.watch.take(found)
    cluster.end("n1", phase="Succeeded")
    cluster.watch.take(outcome("p", phase="Succeeded", node="n1"))
    assert cluster.value("failures_total", kind="OutOfMemory") == 1
    assert cluster.value("pods_total", result="succeeded") == 1  # the other pod


def test_a_node_on_which_containers_restart_in_place_is_warned_about() -> None:
    """The jobs of two namespaces end well elsewhere."""
    cluster = Cluster()
    for number in range(60):
        created = cluster.now
        cluster.now += 120
        failed = pod_object(
            f"r-{number}", phase="Running", namespace=f"ns-{number % 3}", node="n0", owner=("Job", f"job-{number}"),
            containers=[restarted("Error", at=cluster.now - 30)], created=created, bound=created,
        )  # fmt: skip
        found = running(failed)
        assert found is not None
        cluster.watch.take(found)
        for node in list(cluster.nodes)[1:9]:
            cluster.end(
                node, namespace=f"ns-{number % 3}", owner=("Job", f"job-{number}"), created=created, bound=created,
                phase="Succeeded", containers=[ended("Completed", exit_code=0, at=cluster.now)],
            )  # fmt: skip
        cluster.now += 6 * 3600
        cluster.watch.look()
    assert {(node, finding.verdict.value) for node, finding in cluster.findings.found} == {("n0", "WARN")}


def test_a_clock_that_is_ahead_is_not_believed() -> None:
    cluster = Cluster()
    cluster.end("n0", phase="Failed", containers=[ended("Error", at=NOW + 1e6)])
    assert reject_until_found(cluster) <= 5
    assert cluster.findings.found[0][1].occurrence <= cluster.now * 1000


def test_pods_of_unknown_nodes_are_counted_as_homeless() -> None:
    cluster = Cluster()
    cluster.end("gone", **REJECTED)
    assert cluster.value("dropped_total", why="homeless") == 1


def test_the_next_leader_reports_an_open_fault_with_its_number() -> None:
    cluster = Cluster()
    reject_until_found(cluster)
    [(_, first)] = cluster.findings.found
    cluster.record("n0", opened(first))
    cluster.now += 60
    cluster.lead()
    reject_until_found(cluster)
    assert cluster.findings.found[-1][1].occurrence == first.occurrence


def test_failures_from_before_the_end_of_a_fault_do_not_open_it_again() -> None:
    cluster = Cluster()
    reject_until_found(cluster)
    [(_, first)] = cluster.findings.found
    cluster.clear("n0", first, at=cluster.now + 1)
    at = cluster.now
    cluster.lead()  # reads the ended pods again
    cluster.now = at + 600
    for back in range(20):
        cluster.end("n0", **REJECTED | {"created": at - back * 12 - 1, "bound": at - back * 12})
    cluster.watch.look()
    assert len(cluster.findings.found) == 1
    assert reject_until_found(cluster) >= 2, "later failures count anew"
    assert cluster.findings.found[-1][1].occurrence > first.occurrence


def test_failures_from_before_the_end_of_a_fault_do_not_count_as_another_kind_either() -> None:
    """For a new leader they are admissions that failed, in the jobs of two namespaces."""
    cluster = Cluster(size=40)
    for turn in range(40):
        cluster.now += 60
        job: dict[str, Any] = {"namespace": f"ns-{turn % 2}", "owner": ("Job", f"job-{turn}"), "gpus": 1}
        for node in cluster.nodes:
            shape = {"created": cluster.now, "bound": cluster.now + 30}
            cluster.end(node, **(REJECTED if node == "n0" else {"phase": "Succeeded"}) | job | shape)
        cluster.now += 60
    [first, *_] = [finding for _, finding in cluster.findings.found]
    cluster.clear("n0", first, at=cluster.now + 1)
    cluster.findings.found.clear()
    cluster.lead()
    cluster.now += 86_400
    cluster.watch.look()
    assert cluster.findings.found == []


def test_a_fault_that_was_closed_takes_new_evidence() -> None:
    cluster = Cluster()
    reject_until_found(cluster)
    [(_, first)] = cluster.findings.found
    cluster.clear("n0", first, at=cluster.now + 1)
    cluster.now += 2
    cluster.watch.look()
    assert [(node, over.occurrence) for node, over in cluster.findings.over] == [("n0", first.occurrence)]
    assert reject_until_found(cluster) >= 2
    assert cluster.findings.found[-1][1].occurrence > first.occurrence


@pytest.mark.parametrize(
    ("verdict", "boot", "ends"), [("PASS", "boot-2", 1), ("FAIL", "boot-2", 0), ("PASS", "boot-1", 0)]
)
async def test_a_reboot_with_a_good_pass_ends_the_finding(verdict: str, boot: str, ends: int) -> None:
    cluster = Cluster()
    reject_until_found(cluster)
    [(_, finding)] = cluster.findings.found
    cluster.record("n0", opened(finding))
    cluster.healths["n0"] = NodeHealth(
        metadata=Metadata(name="n0"), status=NodeHealthStatus(verdict=verdict, boot_id=boot)
    )
    cluster.watch.note("n0")
    await cluster.watch.look_at_boots()
    assert len(cluster.findings.over) == ends
    assert all(over.how == "boot" for _, over in cluster.findings.over)


@pytest.mark.parametrize("noted", ["before", "meanwhile"])
async def test_a_boot_from_before_the_finding_does_not_end_it(monkeypatch: pytest.MonkeyPatch, noted: str) -> None:
    """A new leader's watch has the boot before the one in which its predecessor found it; its watch of Nodes may
    deliver the fault while another node is read."""
    cluster = Cluster()
    for name in ("n0", "n1"):
        reject_until_found(cluster, name)
    found = dict(cluster.findings.found)
    old, newest = (
        NodeHealth(metadata=Metadata(name="n"), status=NodeHealthStatus(verdict="PASS", boot_id=boot))
        for boot in ("boot-0", "boot-1")
    )
    cluster.healths |= {"n0": old, "n1": old}

    async def verify_health(name: str) -> bool:
        deliver("n1")
        cluster.healths[name] = newest
        return True

    def deliver(name: str) -> None:
        cluster.record(name, opened(found[name]))
        cluster.watch.note(name)

    monkeypatch.setattr(cluster.fleet, "verify_health", verify_health)
    deliver("n0")
    if noted == "before":
        deliver("n1")
    for _ in range(3):
        await cluster.watch.look_at_boots()
        cluster.watch.look()
    assert cluster.healths == {"n0": newest, "n1": newest}
    assert cluster.findings.over == []


def test_a_kind_that_the_policy_ignores_is_not_found_and_its_findings_end() -> None:
    cluster = Cluster(policy={"kinds": {"DeviceAllocation": "ignore"}})
    for _ in range(60):
        cluster.now += 11.5
        cluster.end("n0", **REJECTED)
    assert cluster.findings.found == []


def test_the_policy_can_turn_a_kind_into_a_warning() -> None:
    cluster = Cluster(policy={"kinds": {"DeviceAllocation": "WARN"}})
    reject_until_found(cluster)
    assert cluster.findings.found[0][1].verdict == "WARN"


def test_a_node_that_is_removed_is_forgotten() -> None:
    cluster = Cluster()
    reject_until_found(cluster)
    del cluster.nodes["n0"]
    cluster.watch.note("n0")
    cluster.watch.look()
    assert cluster.watch._evidence.verdict("n0", "DeviceAllocation") is None


def test_a_pod_that_was_counted_is_not_read_again() -> None:
    cluster = Cluster()
    pod = decoded(pod_object(node="n0"))
    outcome_of_pod = cluster.watch._reduce(pod).outcome
    assert outcome_of_pod is not None
    cluster.watch.take(outcome_of_pod)
    again = cluster.watch._reduce(pod)
    assert (again.metadata.name, again.outcome) == (pod.metadata.name, None)
