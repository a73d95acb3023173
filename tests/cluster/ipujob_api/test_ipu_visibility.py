"""Free IPUs on the nodes, and for the real scheduler: with the rights of the chart's roles, and the configuration that
the chart's notes print."""

import asyncio
import json
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.chart.helm_render import PROGRAM, Helm
from tests.cluster.ipujob.operator_bed import (
    OPERATOR,
    OWN,
    SELECTOR,
    Bed,
    bed_fixture,  # noqa: F401 - the fixture
    inference,
    until,
)
from tests.docs.command_list import commands_of_test
from tests.docs.command_runner import CommandRunner

from muster_kube.api.client import KubeClient
from muster_kube.api.errors import NotFound
from muster_operator.observe.node_capacity import IPUS_FREE, IPUS_TOTAL
from muster_sandbox.processes import ManagedProcess, ProcessReaper
from muster_sandbox.simulation.nodes import NodeShape

ROLE = "gc-ipu-operator-controller-manager-ipu-"
RBAC = "/apis/rbac.authorization.k8s.io/v1"
MAPS = f"/api/v1/namespaces/{OWN}/configmaps"
QUARANTINE = f"{MAPS}/muster-ipu-quarantine"
LABELS = {SELECTOR[0]: SELECTOR[1]}
SCHEDULER = "with-ipus"
Object = dict[str, Any]


@pytest.fixture
def helm(tmp_path: Path) -> Helm:
    return Helm(tmp_path / "helm")


@pytest.fixture
async def quarantine(api: KubeClient) -> AsyncIterator[None]:
    """At the end no IPU is quarantined."""
    yield
    with suppress(NotFound):
        await api.delete(QUARANTINE)


@pytest.fixture
async def rights(api: KubeClient) -> AsyncIterator[list[str]]:
    """Names of roles that the operator has for this test."""
    granted: list[str] = []
    yield granted
    for name in granted:
        for plural in ("clusterroles", "clusterrolebindings"):
            await api.delete(f"{RBAC}/{plural}/{name}")


async def grant(api: KubeClient, helm: Helm, form: str, granted: list[str]) -> None:
    """What the chart grants for this form, and nothing else."""
    role = helm.template(values={"ipuVisibility": {"advertise": form}}).one("ClusterRole", ROLE + form)
    name = role["metadata"]["name"]
    granted.append(name)
    await api.create(f"{RBAC}/clusterroles", {"metadata": {"name": name}, "rules": role["rules"]})
    body = {
        "metadata": {"name": name},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name},
        "subjects": [{"kind": "ServiceAccount", "name": OPERATOR, "namespace": OWN}],
    }
    await api.create(f"{RBAC}/clusterrolebindings", body)


def settings(folder: Path, **settings: object) -> tuple[str, str]:
    file = folder / "operator.yaml"
    file.write_text(json.dumps(settings))
    return "--config", str(file)


async def numbers(api: KubeClient, node: str, form: str) -> list[Object]:
    """Free and total on the node: labels, or capacity and allocatable."""
    found = await api.get(f"/api/v1/nodes/{node}")
    places = (
        [found["metadata"]["labels"]]
        if form == "labels"
        else [found["status"][key] for key in ("capacity", "allocatable")]
    )
    return [{key: place[key] for key in (IPUS_FREE, IPUS_TOTAL) if key in place} for place in places]


async def until_numbers(api: KubeClient, node: str, form: str, free: int | None) -> None:
    """None: the node has none."""
    expected = {} if free is None else {IPUS_FREE: str(free), IPUS_TOTAL: "32"}

    async def ask() -> bool:
        return all(each == expected for each in await numbers(api, node, form))

    await until(ask, f"{node} has {expected} as {form}")


def quarantined(*ipus: tuple[str, int]) -> Object:
    data = {f"{machine}_{index}": json.dumps({"machine": machine, "index": index}) for machine, index in ipus}
    return {"metadata": {"name": "muster-ipu-quarantine"}, "data": data}


async def test_the_nodes_of_a_controller_show_its_free_ipus(
    bed: Bed, api: KubeClient, helm: Helm, rights: list[str], quarantine: None, tmp_path: Path
) -> None:
    await grant(api, helm, "labels", rights)
    shape = NodeShape(labels=LABELS | {"node-role.kubernetes.io/master": ""}, gpus=0)
    [master] = await bed.fleet.create(1, prefix=f"master-{bed.namespace}", shape=shape)
    [elsewhere] = await bed.fleet.create(1, prefix=f"other-{bed.namespace}", shape=NodeShape(gpus=0))
    await bed.start(*settings(tmp_path, ipu_visibility="labels"))
    for node in bed.nodes:
        await until_numbers(api, node, "labels", 32)

    await api.create(MAPS, quarantined(("10.1.1.8", 3)))
    job = await bed.submit("serve", inference(ipus=4))
    await until_numbers(api, bed.nodes[0], "labels", 27)
    await job.delete()
    await until_numbers(api, bed.nodes[0], "labels", 31)

    # somebody changes a number, and a node joins the controller
    await api.patch(f"/api/v1/nodes/{bed.nodes[0]}", {"metadata": {"labels": {IPUS_FREE: "7"}}})
    await api.patch(f"/api/v1/nodes/{elsewhere}", {"metadata": {"labels": LABELS}})
    for node in (bed.nodes[0], elsewhere):
        await until_numbers(api, node, "labels", 31)
    await api.patch(f"/api/v1/nodes/{elsewhere}", {"metadata": {"labels": {SELECTOR[0]: None}}})
    await until_numbers(api, elsewhere, "labels", None)
    await until_numbers(api, master, "labels", None)

    typist = typing_as_documented(bed, tmp_path)
    printed = await asyncio.to_thread(typist.type, "kubectl get nodes -L muster.dev/ipus-free -L muster.dev/ipus-total")
    shown = {line.split()[0]: line.split()[-2:] for line in printed.splitlines()}
    assert shown[bed.nodes[0]] == ["31", "32"]
    await until_removed(bed, typist, "labels")
    assert not typist.left


async def test_extended_resources_are_written_restored_and_removed(
    bed: Bed, api: KubeClient, helm: Helm, rights: list[str], tmp_path: Path
) -> None:
    await grant(api, helm, "resources", rights)
    shape = NodeShape(labels=LABELS | {"node-role.kubernetes.io/control-plane": ""}, gpus=0)
    [master] = await bed.fleet.create(1, prefix=f"master-{bed.namespace}", shape=shape)
    await bed.start(*settings(tmp_path, ipu_visibility="resources", advertise_on_master=True), nodes=1)
    for node in (master, *bed.nodes):
        await until_numbers(api, node, "resources", 32)
    # as a kubelet does that registers its node anew
    await api.patch(f"/api/v1/nodes/{master}/status", {"status": {"capacity": {IPUS_FREE: "0", IPUS_TOTAL: "0"}}})
    await until_numbers(api, master, "resources", 32)
    await until_removed(bed, typing_as_documented(bed, tmp_path), "resources")
    await until_numbers(api, master, "resources", None)


def typing_as_documented(bed: Bed, folder: Path) -> CommandRunner:
    environ = {"KUBECONFIG": str(bed.control_plane.kubeconfig), "PATH": f"{PROGRAM.parent}:{os.environ['PATH']}"}
    return CommandRunner(commands_of_test(__file__), {}, environ, folder)


async def until_removed(bed: Bed, typist: CommandRunner, form: str) -> None:
    """With the operator stopped, which would write the numbers again."""
    assert bed.operator is not None
    await bed.operator.stop()
    await asyncio.to_thread(typist.type, "muster release --ipus", "--yes")
    for node in bed.nodes:
        await until_numbers(bed.api, node, form, None)


def printed_configuration(helm: Helm, bed: Bed) -> Object:
    """The KubeSchedulerConfiguration in the chart's notes, for this cluster's version."""
    version = bed.control_plane.server_version
    notes = helm.notes(values={"extendedScheduler": {"enabled": True}}, version=version)
    _, text, _ = notes.split("\n---\n")
    assert bed.operator is not None
    found: Object = yaml.safe_load(text.replace("ADDRESS:9444", bed.operator.told["extender"]))
    return found


@contextmanager
def real_scheduler(bed: Bed, binaries: Path, configuration: Object) -> Iterator[None]:
    """A second one, for pods that name it. Only what concerns this machine differs from the notes."""
    configuration["clientConnection"]["kubeconfig"] = str(bed.control_plane.data / "scheduler.kubeconfig")
    configuration["leaderElection"]["leaderElect"] = False
    configuration["profiles"] = [{"schedulerName": SCHEDULER}]
    if configuration["apiVersion"].endswith("v1beta1"):
        configuration |= {"healthzBindAddress": "", "metricsBindAddress": ""}
    file = bed.folder / "scheduler.yaml"
    file.write_text(yaml.safe_dump(configuration))
    reaper = ProcessReaper()
    command = [str(binaries / "kube-scheduler"), f"--config={file}", "--secure-port=0"]
    scheduler = ManagedProcess("kube-scheduler", command, bed.folder / "scheduler.log", reaper)
    try:
        scheduler.start()
        yield
        scheduler.require_alive()
    finally:
        scheduler.stop()
        reaper.close()


async def submit_pod(bed: Bed, name: str, ipus: str | None) -> None:
    annotations = {} if ipus is None else {"graphcore.ai/ipus": ipus}
    body = {
        "metadata": {"name": name, "annotations": annotations},
        "spec": {"schedulerName": SCHEDULER, "containers": [{"name": "main", "image": "poplar:1"}]},
    }
    await bed.api.create(f"/api/v1/namespaces/{bed.namespace}/pods", body)


async def until_placed(bed: Bed, name: str) -> str:
    async def ask() -> str:
        pod = await bed.api.get(f"/api/v1/namespaces/{bed.namespace}/pods/{name}")
        return str(pod["spec"].get("nodeName", ""))

    return str(await until(ask, f"{name} has a node"))


async def until_unschedulable(bed: Bed, name: str, *facts: str) -> None:
    """The pod's condition holds all of these."""

    async def ask() -> bool:
        pod = await bed.api.get(f"/api/v1/namespaces/{bed.namespace}/pods/{name}")
        assert "nodeName" not in pod["spec"]
        found = [each["message"] for each in pod["status"].get("conditions", []) if each["type"] == "PodScheduled"]
        return any(all(fact in message for fact in facts) for message in found)

    await until(ask, f"{name} is unschedulable because of {facts}")


async def test_the_real_scheduler_places_annotated_pods_where_ipus_are_free(
    bed: Bed, api: KubeClient, helm: Helm, binaries: Path, quarantine: None, tmp_path: Path
) -> None:
    await bed.fleet.create(6, prefix=f"cpu-{bed.namespace}", shape=NodeShape(gpus=0))
    # one IPU of each half of the 32
    await api.create(MAPS, quarantined(("10.1.1.1", 0), ("10.1.1.5", 0)))
    await bed.start(*settings(tmp_path, extender_port=0), nodes=1)
    with real_scheduler(bed, binaries, printed_configuration(helm, bed)):
        for number in range(3):
            await submit_pod(bed, f"eight-{number}", "8")
            assert await until_placed(bed, f"eight-{number}") == bed.nodes[0]
        await submit_pod(bed, "sixteen", "16")
        await until_unschedulable(bed, "sixteen", "30 free", "at most 8", f"={SELECTOR[1]}")
        await submit_pod(bed, "odd", "3")
        await until_unschedulable(bed, "odd", "graphcore.ai/ipus", "'3'")
        await submit_pod(bed, "plain", None)
        assert await until_placed(bed, "plain")
