"""Reviews of pods: one that asks for IPUs gets what it needs to wait for them; every other passes as it is."""

import copy
import json
from typing import Any

import msgspec
import pytest
from tests.operator.admission.test_review import raw
from tests.wording.facts import missing_facts

from muster_kube.api.errors import ApiError, Unreachable
from muster_kube.api.reviews import Identity
from muster_kube.webhook.review import AdmissionRequest, BadReview, Resource, ReviewAnswer
from muster_operator.admission.ipu_pods import FIELD, PodReviewer
from muster_operator.job import names
from muster_operator.job.ipu_pod import VOLUME, IpuPod, as_job, config_map_of, is_gated
from muster_operator.job.snapshot import JobSetup
from muster_operator.job.types import ipus_per_instance
from muster_operator.resources.ipu_pods import HOST, MOUNTED_AT, PARTITION, PORT, WAIT
from muster_operator.resources.placement import NOT_FAULTY, NOT_SPARE

Object = dict[str, Any]
AWAY = Unreachable("/version", "no answer")


def pod(ipus: object = "4", **spec: Any) -> Object:
    container = {"name": "main", "image": "poplar:3"}
    annotations = {} if ipus is None else {"graphcore.ai/ipus": ipus}
    metadata = {"generateName": "train-", "annotations": annotations}
    return {"metadata": metadata, "spec": {"containers": [container]} | spec}


class PodWebhook:
    """minor: of the API server; an error if it does not say."""

    def __init__(self, minor: int | ApiError = 30, *scope: str) -> None:
        self.minor = minor
        self.counted: list[str] = []
        setup = JobSetup(launcher_image="muster:1", launcher_image_pull_policy="IfNotPresent")
        self._reviewer = PodReviewer(setup, self._read, scope, self.counted.append)

    async def _read(self) -> int:
        if isinstance(self.minor, ApiError):
            raise self.minor
        return self.minor

    async def answer(self, asked: Object, **fields: Any) -> ReviewAnswer:
        given: dict[str, Any] = {
            "uid": "1",
            "user_info": Identity("ann"),
            "resource": Resource(version="v1", resource="pods"),
            "namespace": "team",
            "operation": "CREATE",
            "object": raw(asked),
        }
        return await self._reviewer.mutate(AdmissionRequest(**given | fields))

    async def pod(self, asked: Object) -> Object:
        """As the API server would store it."""
        answer = await self.answer(asked)
        assert answer.allowed, answer
        return patched(asked, answer)


def patched(asked: Object, answer: ReviewAnswer) -> Object:
    found = copy.deepcopy(asked)
    for each in json.loads(msgspec.json.encode(answer.patch)):
        *way, last = (part.replace("~1", "/").replace("~0", "~") for part in each["path"].split("/")[1:])
        at = found
        for part in way:
            at = at[part]
        if each["op"] == "remove":
            del at[last]
            continue
        assert each["op"] in ("add", "replace")
        at[last] = each["value"]
    return found


def read(stored: Object) -> IpuPod:
    metadata = {"name": "train-x", "namespace": "team", "uid": "u1"} | stored["metadata"]
    return msgspec.convert(stored | {"metadata": metadata}, IpuPod)


def from_config(container: Object) -> dict[str, tuple[str, str]]:
    """By variable: the ConfigMap and its key, without which the container does not start."""
    found = {each["name"]: each["valueFrom"]["configMapKeyRef"] for each in container["env"] if "valueFrom" in each}
    assert not any(ref.get("optional") for ref in found.values())
    return {name: (ref["name"], ref["key"]) for name, ref in found.items()}


def taken_from(stored: Object) -> dict[str, tuple[str, str]]:
    name = config_map_of(read(stored))
    return {key: (name, key) for key in (HOST, PORT, PARTITION)}


async def test_a_pod_without_the_annotation_is_not_changed() -> None:
    webhook = PodWebhook(AWAY)  # nobody is asked for it
    assert await webhook.answer(pod(None)) == ReviewAnswer(True)
    assert await webhook.answer({"metadata": {}, "spec": {}}) == ReviewAnswer(True)
    assert webhook.counted == ["allowed", "allowed"]


@pytest.mark.parametrize("wanted", ["0", "-1", "1000000", "3", "1.5", "four", "", " 4", "04", 4, "128"])
async def test_a_number_that_no_partition_has_is_refused_with_its_field(wanted: object) -> None:
    webhook = PodWebhook()
    answer = await webhook.answer(pod(wanted))
    assert (answer.allowed, answer.code, answer.patch, webhook.counted) == (False, 422, (), ["refused"])
    assert missing_facts(answer.message, FIELD, json.dumps(wanted), "1, 2, 4, 8, 16, 32, 64") == []
    assert answer.details is not None
    assert [each["field"] for each in answer.details["causes"]] == [FIELD]  # type: ignore[attr-defined]


@pytest.mark.parametrize(("minor", "gated"), [(20, False), (26, False), (27, True), (36, True)])
async def test_it_waits_by_a_gate_where_there_are_any_else_in_an_init_container(minor: int, gated: bool) -> None:
    users = [{"name": "fetch", "image": "i"}]
    stored = await PodWebhook(minor).pod(pod(initContainers=users, schedulingGates=[{"name": "quota"}]))
    first = stored["spec"]["initContainers"][0]
    assert is_gated(read(stored)) is gated
    assert (first["name"] == WAIT) is not gated
    assert {"name": "quota"} in stored["spec"]["schedulingGates"]
    if not gated:
        assert (first["image"], first["imagePullPolicy"]) == ("muster:1", "IfNotPresent")
        assert f"{MOUNTED_AT}/{PARTITION}" in first["command"][-1]
        assert [mount["mountPath"] for mount in first["volumeMounts"]] == [MOUNTED_AT]


async def test_a_pod_that_bypasses_the_scheduler_waits_in_an_init_container() -> None:
    stored = await PodWebhook().pod(pod(nodeName="n1"))
    assert [each["name"] for each in stored["spec"]["initContainers"]] == [WAIT]
    assert "schedulingGates" not in stored["spec"]
    # the fields that the Pod Security Standards list for "restricted"
    context = stored["spec"]["initContainers"][0]["securityContext"]
    assert (context["allowPrivilegeEscalation"], context["capabilities"]) == (False, {"drop": ["ALL"]})
    assert (context["runAsNonRoot"], context["seccompProfile"]) == (True, {"type": "RuntimeDefault"})
    assert context["runAsUser"] > 0


async def test_every_container_reads_its_partition_from_the_config_map_and_users_cannot_name_another() -> None:
    env = [{"name": PARTITION, "value": "p-others"}, {"name": "IPUOF_VIPU_API_TIMEOUT", "value": "7"}]
    containers = [{"name": "a", "image": "i", "env": env}, {"name": "b", "image": "i"}]
    stored = await PodWebhook().pod(pod(containers=containers, initContainers=[{"name": "c", "image": "i"}]))
    for each in (*stored["spec"]["containers"], *stored["spec"]["initContainers"]):
        assert from_config(each) == taken_from(stored)
        plain = {variable["name"]: variable["value"] for variable in each["env"] if "value" in variable}
        assert plain["IPUOF_VIPU_API_GCD_ID"] == "0"
        assert plain["IPUOF_VIPU_API_TIMEOUT"] == ("7" if each["name"] == "a" else "120")
    (volume,) = stored["spec"]["volumes"]
    assert volume["configMap"]["optional"] is True


async def test_what_was_admitted_is_what_its_volume_says_whatever_annotation_and_label_say_later() -> None:
    stored = await PodWebhook().pod(pod("16"))
    stored["metadata"]["annotations"]["graphcore.ai/ipus"] = "64"
    stored["metadata"]["labels"]["muster.dev/ipus"] = "64"
    job = as_job(read(stored))
    assert job is not None
    assert (ipus_per_instance(job.spec), job.metadata.name, job.metadata.uid) == (16, "pod/train-x", "u1")


async def test_a_config_map_that_a_user_names_is_replaced_and_no_two_pods_get_the_same() -> None:
    webhook = PodWebhook(20)
    first = await webhook.pod(pod())
    copied = await webhook.pod(first)  # as from `kubectl get -o yaml`, or after another webhook
    assert config_map_of(read(copied)) not in ("", config_map_of(read(first)))
    spec = copied["spec"]
    assert [each["name"] for each in spec["volumes"]] == [VOLUME]
    assert [each["name"] for each in spec["initContainers"]] == [WAIT]
    assert from_config(spec["containers"][0]) == taken_from(copied)
    again = copy.deepcopy(copied)
    token, older = (config_map_of(read(each)) for each in (copied, first))
    assert json.loads(json.dumps(again).replace(token, older)) == first


@pytest.mark.parametrize("minor", [20, 30])
async def test_a_copied_pod_does_not_name_the_partition_of_the_other(minor: int) -> None:
    webhook = PodWebhook(minor)
    first = await webhook.pod(pod())
    first["metadata"]["annotations"][names.PARTITION] = "p-others"
    assert (await webhook.pod(first))["metadata"]["annotations"] == pod()["metadata"]["annotations"]


@pytest.mark.parametrize("name", ["kube-root-ca.crt", "muster-ipus-4", "muster-ipus-0-0123456789abcdef", ""])
async def test_a_volume_that_admission_did_not_make_gives_nothing(name: str) -> None:
    stored = pod(volumes=[{"name": VOLUME, "configMap": {"name": name}}])
    assert as_job(read(stored)) is None


async def test_it_keeps_off_faulty_nodes_and_spares_as_the_pods_of_jobs_do() -> None:
    users = {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [users]}}
    stored = await PodWebhook().pod(pod(affinity={"nodeAffinity": required, "podAffinity": {}}))
    affinity = stored["spec"]["affinity"]
    (term,) = affinity["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert term["matchExpressions"] == [*users["matchExpressions"], NOT_FAULTY, NOT_SPARE]
    assert affinity["podAffinity"] == {}


async def test_a_pod_of_an_ipujob_has_its_ipus_already() -> None:
    worker = pod()
    worker["metadata"]["ownerReferences"] = [
        {"apiVersion": "graphcore.ai/v1alpha1", "kind": "IPUJob", "name": "j", "uid": "u", "controller": True}
    ]
    answer = await PodWebhook().answer(worker)
    assert (answer.allowed, answer.patch, len(answer.warnings)) == (True, (), 1)
    # its template has what the webhook would have added
    forged = await PodWebhook().pod(pod())
    assert as_job(read(forged)) is not None
    forged["metadata"]["ownerReferences"] = worker["metadata"]["ownerReferences"]
    assert as_job(read(forged)) is None


async def test_only_pods_that_are_made_within_the_scope_are_changed() -> None:
    webhook = PodWebhook(30, "others")
    assert await webhook.answer(pod()) == ReviewAnswer(True)
    assert (await webhook.answer(pod(), namespace="others")).patch
    for fields in ({"operation": "UPDATE"}, {"sub_resource": "ephemeralcontainers"}):
        assert await PodWebhook().answer(pod(), **fields) == ReviewAnswer(True)


async def test_where_the_version_cannot_be_read_the_pod_is_refused_and_tried_again() -> None:
    webhook = PodWebhook(AWAY)
    assert (await webhook.answer(pod())).code == 503
    webhook.minor = 30
    assert is_gated(read(await webhook.pod(pod())))


@pytest.mark.parametrize(
    ("resource", "content"), [("ipujobs", b"{}"), ("pods", b"[]"), ("pods", b"{"), ("pods", b"[" * 5000)]
)
async def test_what_is_no_pod_is_told_so(resource: str, content: bytes) -> None:
    fields: Object = {"resource": Resource(version="v1", resource=resource), "object": msgspec.Raw(content)}
    with pytest.raises(BadReview):
        await PodWebhook().answer({}, **fields)
