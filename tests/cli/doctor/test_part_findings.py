"""Which parts there are, whether they run and lead, and what else is said of them."""

from typing import Any

import msgspec
import pytest
from tests.wording.facts import missing_facts

from muster_checks.base.vocabulary import Verdict
from muster_cli.doctor.facts import (
    ApiGroup,
    ApiGroups,
    DataMap,
    EventFacts,
    GroupVersion,
    PodFacts,
    Workload,
)
from muster_cli.doctor.findings import DoctorFinding, ReadFailure
from muster_cli.doctor.judges import ipus, leaders, parts, settings
from muster_cli.exit_codes import worst_exit_code
from muster_kube.api.objects import Metadata, Node, NodeStatus
from muster_kube.api.times import rfc3339_whole
from muster_kube.controller.lease import Lease
from muster_operator.job.partition_api import PartitionCapacity
from muster_tainter.pause import PauseMap

NOW = 1_800_000_000.0
UNSEEN = ReadFailure("/api/v1/pods", "Forbidden: no", forbidden=True)


def workload(kind: str, name: str, *, ready: int = 1, replicas: int = 1, namespace: str = "gc") -> Workload:
    labels = {parts.COMPONENT: kind, parts.VERSION: "1"}
    body = {
        "metadata": {"name": name, "namespace": namespace, "labels": labels},
        "spec": {"replicas": replicas, "template": {"spec": {"serviceAccountName": f"{name}-account"}}},
        "status": {"readyReplicas": ready},
    }
    return msgspec.convert(body, type=Workload)


def event(name: str, reason: str, message: str) -> EventFacts:
    body = {"metadata": {"name": "e"}, "involvedObject": {"name": name}, "reason": reason, "message": message}
    return msgspec.convert(body, type=EventFacts)


def pod(**status: Any) -> PodFacts:
    return msgspec.convert({"metadata": {"name": "p"}, "status": status}, type=PodFacts)


def verdicts(found: list[DoctorFinding]) -> list[Verdict]:
    return [finding.verdict for finding in found]


def test_the_parts_are_known_by_their_labels_and_else_by_their_accounts() -> None:
    tainter = workload("tainter", "muster-tainter")
    found = parts.find_parts([tainter], [("muster", "muster-agent"), ("muster", "muster-tainter"), ("x", "default")])
    assert [(part.kind, part.namespace, part.account) for part in found] == [
        ("agent", "muster", "muster-agent"),
        ("tainter", "gc", "muster-tainter-account"),
    ]


def test_the_names_of_the_ipu_parts_follow_the_releases() -> None:
    (operator,) = parts.find_parts([workload("operator", "gc-ipu-operator-controller-manager")], [])
    assert operator.webhook == "gc-ipu-operator-webhook"
    (outside,) = parts.find_parts([], [("muster", "muster-operator")])
    assert outside.webhook == "muster-ipujob"


def test_cluster_without_parts_gets_the_install_command() -> None:
    (found,) = parts.judge((), {}, {}, "1")
    assert found.verdict is Verdict.FAIL
    assert "helm upgrade" in found.mend


def test_part_without_ready_pods_reports_the_container_state() -> None:
    waiting = {"reason": "ImagePullBackOff", "message": "Back-off pulling image"}
    ill = pod(phase="Pending", containerStatuses=[{"name": "tainter", "state": {"waiting": waiting}}])
    known = parts.find_parts([workload("tainter", "muster-tainter", ready=0, replicas=2)], [])
    (found,) = parts.judge(known, {"gc/muster-tainter": [ill]}, {}, "1")
    assert found.verdict is Verdict.FAIL
    assert not missing_facts(found.what, "gc/muster-tainter", "0 of 2", "container tainter")
    assert f"{waiting['reason']}: {waiting['message']}" in found.what


def test_a_part_one_of_whose_pods_runs_is_a_warning() -> None:
    known = parts.find_parts([workload("tainter", "muster-tainter", ready=1, replicas=2)], [])
    assert verdicts(parts.judge(known, {}, {}, "1")) == [Verdict.WARN]


def test_a_part_that_was_scaled_to_nothing_is_wrong() -> None:
    known = parts.find_parts([workload("operator", "x-controller-manager", ready=0, replicas=0)], [])
    (found,) = parts.judge(known, {}, {}, "1")
    assert found.verdict is Verdict.FAIL
    assert not missing_facts(found.what, "gc/x-controller-manager", "0")
    assert found.mend.endswith("--replicas 1")


def test_failure_to_create_pods_is_reported() -> None:
    known = parts.find_parts([workload("tainter", "muster-tainter", ready=0)], [])
    events = {"gc": [event("muster-tainter-5d", "FailedCreate", "exceeded quota: q")]}
    (found,) = parts.judge(known, {}, events, "1")
    assert "FailedCreate: exceeded quota: q" in found.what


def test_crashing_pod_is_reported_with_exit_code_and_last_event() -> None:
    ended = {"terminated": {"reason": "OOMKilled", "exitCode": 137}}
    ill = pod(phase="Running", containerStatuses=[{"name": "a", "restartCount": 3, "lastState": ended}])
    last = event("p", "BackOff", "restarting failed container")
    trouble = parts.describe_trouble(ill, [last])
    assert not missing_facts(trouble, "container a", "OOMKilled", "137", f"{last.reason}: {last.message}")


def test_unscheduled_pod_is_reported_with_the_schedulers_message() -> None:
    unbound = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/4 nodes"}
    assert parts.describe_trouble(pod(phase="Pending", conditions=[unbound]), []) == "Unschedulable: 0/4 nodes"


def test_different_releases_are_reported() -> None:
    known = parts.find_parts([workload("tainter", "muster-tainter")], [])
    (found,) = parts.judge(known, {}, {}, "2")
    assert found.verdict is Verdict.WARN
    assert not missing_facts(found.what, "2", "tainter 1")


# leaders, pause


def lease(*, renewed: float, holder: str = "a", moved: bool = False) -> leaders.ObservedLease:
    spec = {"holderIdentity": holder, "renewTime": rfc3339_whole(renewed)}
    return leaders.ObservedLease(msgspec.convert({"metadata": {"name": "l"}, "spec": spec}, type=Lease), moved)


TAINTER = parts.find_parts([workload("tainter", "muster-tainter")], [])


def test_a_lease_that_is_renewed_has_a_leader() -> None:
    assert verdicts(leaders.judge(TAINTER, {"tainter": lease(renewed=NOW - 2)}, NOW)) == [Verdict.PASS]


def test_a_lease_that_is_renewed_while_we_look_has_one_whose_clock_is_wrong() -> None:
    (found,) = leaders.judge(TAINTER, {"tainter": lease(renewed=NOW - 900, moved=True)}, NOW)
    assert found.verdict is Verdict.WARN
    assert not missing_facts(found.what, "tainter a", "900 s", "behind")


def test_a_lease_that_is_old_has_none() -> None:
    (found,) = leaders.judge(TAINTER, {"tainter": lease(renewed=NOW - 600)}, NOW)
    assert found.verdict is Verdict.FAIL
    assert not missing_facts(found.what, "Lease gc/muster-tainter", "10m", "a")


def test_a_lease_that_is_given_back_or_was_never_there_has_no_leader() -> None:
    for observed in (lease(renewed=NOW, holder=""), None):
        (found,) = leaders.judge(TAINTER, {"tainter": observed}, NOW)
        assert (found.area, found.verdict) == ("leaders", Verdict.FAIL)
        assert not missing_facts(found.what, "tainter", "Lease gc/muster-tainter")
    assert verdicts(leaders.judge(TAINTER, {"tainter": UNSEEN}, NOW)) == [Verdict.UNKNOWN]


def test_pause_is_reported_with_its_user_and_age() -> None:
    data = {"by": "ada", "at": rfc3339_whole(NOW - 7200), "reason": "switch"}
    (found,) = leaders.judge_pause(PauseMap(metadata=Metadata(name="muster-pause"), data=data), NOW)
    assert found.verdict is Verdict.WARN
    assert not missing_facts(found.what, "ada", "2h", "switch")
    assert found.mend == "muster resume"
    assert verdicts(leaders.judge_pause(None, NOW)) == [Verdict.PASS]


# policy, API versions


def text_map(**data: str) -> DataMap:
    return DataMap(metadata=Metadata(name="m"), data={key.replace("_", "."): value for key, value in data.items()})


def test_a_policy_that_does_not_parse_names_the_place() -> None:
    bad = text_map(policy_yaml="rules: [{name: a, action: taint, taint: {effect: NoShedule}}]")
    (found,) = settings.judge_policy("autopilot", bad)
    assert found.verdict is Verdict.FAIL
    assert "NoShedule" in found.what


def test_a_good_policy_or_none_is_fine() -> None:
    assert verdicts(settings.judge_policy("autopilot", text_map(policy_yaml="rules: []"))) == [Verdict.PASS]
    assert verdicts(settings.judge_policy("autopilot", None)) == [Verdict.PASS]


def test_missing_api_version_is_reported_with_its_users() -> None:
    def groups(*versions: str) -> ApiGroups:
        return ApiGroups(groups=(ApiGroup(versions=tuple(GroupVersion(group_version=each) for each in versions)),))

    served = ["apps/v1", "batch/v1", "coordination.k8s.io/v1", "policy/v1beta1", "authentication.k8s.io/v1"]
    served += ["authorization.k8s.io/v1", "apiextensions.k8s.io/v1", "muster.dev/v1alpha1"]
    assert verdicts(settings.judge_apis(TAINTER, groups(*served))) == [Verdict.PASS]
    (found,) = settings.judge_apis(TAINTER, groups(*(each for each in served if not each.startswith("policy"))))
    assert found.verdict is not Verdict.PASS
    assert not missing_facts(found.what, "policy/v1", "v1beta1", "tainter")


# V-IPU

(PROXY,) = parts.find_parts([workload("vipu-proxy", "gc-ipu-operator-vipu-proxy")], [])
LISTED = text_map(controllers_yaml="pod001:8090:ipunode=node1")


def test_a_v_ipu_that_answers_is_fine() -> None:
    answer = PartitionCapacity(available=True, num_of_partitions=4)
    (found,) = ipus.judge(ipus.VipuState(PROXY, LISTED, "", answer))
    assert found.verdict is Verdict.PASS
    assert not missing_facts(found.what, "1 V-IPU controller")


def test_a_v_ipu_that_cannot_be_reached_is_named() -> None:
    answer = PartitionCapacity(available=False, num_of_partitions=0, message="pod001:8090: timeout")
    (found,) = ipus.judge(ipus.VipuState(PROXY, LISTED, "", answer))
    assert found.verdict is Verdict.FAIL
    assert not missing_facts(found.what, "pod001:8090: timeout")
    assert "edit configmap gc-ipu-operator-vipu-controllers" in found.mend
    assert ipus.judge(ipus.VipuState(PROXY, LISTED, "", msgspec.structs.replace(answer, available=True)))[
        0
    ].verdict is (Verdict.WARN)


def test_a_list_of_controllers_that_does_not_parse_names_the_entry() -> None:
    (found,) = ipus.judge(
        ipus.VipuState(PROXY, text_map(controllers_yaml="pod001:8090:ipunode=node1,pod002"), "", None)
    )
    assert "entry 2, 'pod002'" in found.what


def test_an_empty_or_missing_list_of_controllers_is_wrong() -> None:
    for listed in (text_map(controllers_yaml=""), None):
        found = ipus.judge(ipus.VipuState(PROXY, listed, "", None))[0]
        assert found.verdict is Verdict.FAIL
        assert not missing_facts(found.what, "ConfigMap gc/gc-ipu-operator-vipu-controllers")


def test_unhealthy_proxy_is_reported_with_its_error() -> None:
    why = "the tracker is not known yet"
    (found,) = ipus.judge(ipus.VipuState(PROXY, LISTED, why, None))
    assert found.verdict is Verdict.FAIL
    assert why in found.what
    assert "deployment/gc-ipu-operator-vipu-proxy" in found.mend


@pytest.mark.parametrize(
    ("forms", "left"),
    [
        (set(), ["labels", "resources"]),
        ({"none"}, ["labels", "resources"]),
        ({"labels"}, ["resources"]),
        ({"resources"}, ["labels"]),
        ({"resources", "labels"}, []),
    ],
)
def test_numbers_of_ipus_that_no_operator_keeps_are_named(forms: set[object], left: list[str]) -> None:
    nodes = [
        Node(metadata=Metadata(name="labels", labels={"muster.dev/ipus-free": "4"})),
        Node(metadata=Metadata(name="resources"), status=NodeStatus(allocatable={"muster.dev/ipus-total": "16"})),
        Node(metadata=Metadata(name="plain"), status=NodeStatus(allocatable={"cpu": "8"})),
    ]
    found = ipus.judge_numbers(nodes, forms)
    assert [(each.verdict, each.mend) for each in found] == [(Verdict.WARN, "muster release --ipus")] * bool(left)
    assert all(not missing_facts(each.what, f"({', '.join(left)})") for each in found)


def test_missing_right_to_query_the_proxy_is_unknown() -> None:
    assert verdicts(ipus.judge(ipus.VipuState(PROXY, LISTED, UNSEEN, None))) == [Verdict.UNKNOWN]


# the whole


@pytest.mark.parametrize(
    ("verdicts", "code"),
    [
        ([], 0),
        ([Verdict.PASS], 0),
        ([Verdict.PASS, Verdict.UNKNOWN], 3),
        ([Verdict.UNKNOWN, Verdict.WARN], 1),
        ([Verdict.WARN, Verdict.FAIL], 2),
    ],
)
def test_the_exit_code_is_that_of_the_worst_finding(verdicts: list[Verdict], code: int) -> None:
    assert worst_exit_code(verdicts) == code
