"""Pods that have IPUs by their annotation, on the real API server with the real webhook: by a scheduling gate where the
API server has them, else by an init container.
"""

import re
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from tests.cluster.ipujob.operator_bed import (
    Bed,
    Object,
    bed_fixture,  # noqa: F401 - the fixture
    until,
)
from tests.docs.command_list import commands_of_test
from tests.docs.command_runner import CommandRunner
from tests.wording.facts import missing_facts

from muster_kube.api.errors import ApiError, Invalid, NotFound
from muster_operator.admission.ipu_pods import FIELD, GATES_MINOR
from muster_operator.job.ipu_pod import ANNOTATION, VOLUME, IpuPod, is_gated
from muster_operator.job.names import IPUS, PARTITION, partition
from muster_operator.job.partition_api import PartitionEntry
from muster_operator.resources.ipu_pods import WAIT


def template(ipus: str | None = "4", **spec: Any) -> Object:
    """Of a pod."""
    annotations = {} if ipus is None else {ANNOTATION: ipus}
    return {"metadata": {"annotations": annotations}, "spec": {"containers": [{"name": "main", "image": "i"}]} | spec}


class PodBed:
    """The operator's bed, with pods."""

    def __init__(self, bed: Bed) -> None:
        self.bed = bed
        self.api = bed.api
        self.pods = f"/api/v1/namespaces/{bed.namespace}/pods"

    @property
    def gated(self) -> bool:
        return self.bed.minor >= GATES_MINOR

    async def start(self, *, ipus: int = 32, nodes: int = 1) -> None:
        await self.bed.api.patch(
            f"/api/v1/namespaces/{self.bed.namespace}", {"metadata": {"labels": {IPUS: "enabled"}}}
        )
        (self.bed.folder / "operator.yaml").write_text("ipu_pods: true\n")
        await self.bed.start("--config", str(self.bed.folder / "operator.yaml"), ipus=ipus, nodes=nodes, ipu_pods=True)
        await until(self._refuses, "the webhook of pods is called")

    async def _refuses(self) -> bool:
        return FIELD in await self.refusal("text")

    async def refusal(self, ipus: str | None) -> str:
        """Why a pod would be refused; empty if it would not be."""
        try:
            await self.api.create(self.pods, self.body("probe", ipus), params={"dryRun": "All"}, timeout_s=60.0)
        except Invalid as error:
            return error.message
        return ""

    def body(self, name: str, ipus: str | None = "4", **spec: Any) -> Object:
        made = template(ipus, **spec)
        made["metadata"]["name"] = name
        return made

    async def make(self, name: str, ipus: str | None = "4", **spec: Any) -> Object:
        return await self.api.create(self.pods, self.body(name, ipus, **spec), timeout_s=60.0)

    async def get(self, name: str) -> Object:
        return await self.api.get(f"{self.pods}/{name}")

    async def until_partition(self, name: str) -> PartitionEntry:
        """Its partition, once the pod knows it."""

        async def has() -> PartitionEntry | None:
            told = (await self.get(name))["metadata"]["annotations"].get(PARTITION)
            return (await self.bed.tracker()).get(told) if told else None

        found: PartitionEntry = await until(has, f"pod {name} has its partition")
        return found

    async def until_phase(self, name: str, phase: str) -> None:
        async def holds() -> bool:
            return bool((await self.get(name))["status"]["phase"] == phase)

        await until(holds, f"pod {name}: {phase}")

    async def until_returned(self, *kept: str) -> None:
        """No partition is left, but those of these pods."""
        wanted = {partition(self.bed.namespace, f"pod/{name}", 0) for name in kept}

        async def returned() -> bool:
            return set(await self.bed.tracker()) == set(await self.bed.vipu_partitions()) == wanted

        await until(returned, f"only {wanted} are left")

    async def until_event(self, name: str, reason: str) -> str:
        async def said() -> str:
            found = await self.api.get(f"/api/v1/namespaces/{self.bed.namespace}/events")
            mine = [
                e for e in found["items"] if (e["involvedObject"]["kind"], e["involvedObject"]["name"]) == ("Pod", name)
            ]
            return next((each["message"] for each in mine if each["reason"] == reason), "")

        return str(await until(said, f"Event {reason} of pod {name}"))

    async def config_map(self, pod: Object) -> Object:
        return await self.api.get(f"/api/v1/namespaces/{self.bed.namespace}/configmaps/{config_name(pod)}")


def config_name(pod: Object) -> str:
    (name,) = (each["configMap"]["name"] for each in pod["spec"]["volumes"] if each["name"] == VOLUME)
    return str(name)


@pytest.fixture
async def pods(bed: Bed) -> AsyncIterator[PodBed]:
    made = PodBed(bed)
    await made.start()
    yield made
    await made.api.delete(made.pods)
    await made.until_returned()


async def test_the_pods_of_a_kubernetes_job_get_a_partition_before_they_start_and_return_it_when_they_end(
    pods: PodBed,
) -> None:
    environ = {"KUBECONFIG": str(pods.bed.control_plane.kubeconfig)}
    guide = CommandRunner(commands_of_test(__file__), {"NAMESPACE": pods.bed.namespace}, environ)
    guide.type("kubectl label --overwrite namespace NAMESPACE muster.dev/ipus=enabled")  # again: it is there already
    guide.type("kubectl apply -n NAMESPACE -f examples/ipu-pods.yaml")
    jobs = f"/apis/batch/v1/namespaces/{pods.bed.namespace}/jobs"

    async def made() -> str:
        items = (await pods.api.get(pods.pods))["items"]
        return str(items[0]["metadata"]["name"]) if items else ""

    name = await until(made, "the controller of Jobs has made a pod")
    entry = await pods.until_partition(name)
    await pods.until_phase(name, "Running")
    pod = await pods.get(name)
    assert (entry.size, entry.job, entry.name) == (4, pod["metadata"]["uid"], f"pod/{name}")
    found = await pods.config_map(pod)
    assert found["data"]["IPUOF_VIPU_API_PARTITION_ID"] == pod["metadata"]["annotations"][PARTITION]
    assert found["metadata"]["ownerReferences"][0]["uid"] == pod["metadata"]["uid"]
    assert [each["name"] for each in pod["spec"].get("initContainers", [])] == ([] if pods.gated else [WAIT])
    if pods.gated:
        assert pod["spec"]["nodeSelector"] == {"ipunode": "rack1"}
    assert pod["metadata"]["annotations"][PARTITION] in guide.type("kubectl describe pods -n NAMESPACE")
    pods.bed.kubelets.finish(f"{pods.bed.namespace}/{name}")
    await pods.until_returned()
    assert not guide.left
    await pods.api.delete(f"{jobs}/train", {"propagationPolicy": "Background"})


async def test_a_bad_number_is_refused_with_its_field_and_other_pods_pass_even_without_an_operator(
    pods: PodBed,
) -> None:
    for wanted in ("0", "-1", "1000000", "four", "3", ""):
        assert missing_facts(await pods.refusal(wanted), FIELD, f'"{wanted}"', "1, 2, 4") == []
    assert await pods.bed.tracker() == {}
    assert pods.bed.operator is not None
    await pods.bed.operator.stop()
    plain = await pods.make("plain", None)
    assert VOLUME not in [each["name"] for each in plain["spec"].get("volumes", [])]
    assert IPUS not in plain["metadata"].get("labels", {})
    if pods.gated:  # such a server asks for annotated pods only, so those may be held up
        with pytest.raises(ApiError):
            await pods.make("asks")
    await pods.bed.start_operator("--config", str(pods.bed.folder / "operator.yaml"))


async def test_without_room_a_pod_waits_and_says_so_until_another_returns_its_partition(bed: Bed) -> None:
    pods = PodBed(bed)
    await pods.start(ipus=4)
    await pods.make("first")
    await pods.until_partition("first")
    await pods.make("second")
    assert await pods.until_event("second", "WaitingForIPUs")
    second = await pods.get("second")
    assert PARTITION not in second["metadata"]["annotations"]
    if pods.gated:
        assert is_gated(msgspec.convert(second, IpuPod))
    await pods.api.delete(f"{pods.pods}/first")
    await pods.until_partition("second")
    await pods.api.delete(f"{pods.pods}/second")
    await pods.until_returned()


async def test_what_a_tenant_forges_gets_him_no_other_partition_and_none_is_lost(pods: PodBed) -> None:
    victim = await pods.make("victim")
    await pods.until_partition("victim")
    config = config_name(victim)
    before = await pods.config_map(victim)

    # names the victim's ConfigMap, and its partition
    env = [{"name": "IPUOF_VIPU_API_PARTITION_ID", "value": partition(pods.bed.namespace, "pod/victim", 0)}]
    thief = pods.body("thief", containers=[{"name": "main", "image": "i", "env": env}])
    thief["spec"]["volumes"] = [{"name": VOLUME, "configMap": {"name": config}}]
    made = await pods.api.create(pods.pods, thief)
    assert config_name(made) != config
    assert all("value" not in each for each in made["spec"]["containers"][0]["env"] if each["name"] == env[0]["name"])
    assert (await pods.until_partition("thief")).job == made["metadata"]["uid"]

    # past the webhook: the label, and the victim's ConfigMap
    forged = pods.body("forged", None)
    forged["metadata"]["labels"] = {IPUS: "4"}
    forged["spec"]["volumes"] = [{"name": VOLUME, "configMap": {"name": config}}]
    await pods.api.create(pods.pods, forged)
    assert re.search(config, await pods.until_event("forged", "ErrResourceExists"))
    assert await pods.config_map(victim) == before

    # asks for more afterwards, and hides from the operator's watch
    await pods.api.patch(
        f"{pods.pods}/victim", {"metadata": {"annotations": {ANNOTATION: "16"}, "labels": {IPUS: None}}}
    )
    assert (await pods.until_partition("victim")).size == 4
    await pods.api.delete(f"{pods.pods}/victim")
    await pods.until_returned("thief", "forged")


async def test_a_node_that_is_gone_returns_the_partitions_of_its_pods(bed: Bed) -> None:
    pods = PodBed(bed)
    await pods.start(nodes=2)
    await pods.make("lost")
    await pods.until_partition("lost")
    await pods.until_phase("lost", "Running")
    node = (await pods.get("lost"))["spec"]["nodeName"]
    await bed.api.delete(f"/api/v1/nodes/{node}")
    await pods.until_returned()
    try:
        await bed.api.delete(f"{pods.pods}/lost", {"gracePeriodSeconds": 0})
    except NotFound:
        return
