"""A volume claim tried on a node: the API server, the volume binder and the scheduler are real, the kubelet is not."""

import asyncio
import os
import sys
import time
from collections.abc import Iterator, Sequence

import pytest
from tests.docs.command_list import commands_of_test

from muster_kube.api.client import KubeClient
from muster_kube.volume_trial import VolumeTrial, VolumeTrialRunner
from muster_sandbox.controlplane.cluster import ControlPlane
from muster_sandbox.simulation.kubelets import Kubelets
from muster_sandbox.simulation.nodes import SimulatedNodes
from muster_sandbox.simulation.pods import PodScript

NODE = "disk-0"
GUARD_S = 120.0  # far more than anything takes: what hangs fails, what is slow does not


@pytest.fixture
async def node(fleet: SimulatedNodes) -> str:
    (name,) = await fleet.create(1, prefix="disk")
    return name


@pytest.fixture
def volume(control_plane: ControlPlane, namespace: str) -> Iterator[str]:
    """A class of its own with one volume, to which the real binder binds a claim. The value is the class."""
    body = {
        "metadata": {"name": namespace},
        "spec": {
            "capacity": {"storage": "1Gi"},
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": namespace,
            "persistentVolumeReclaimPolicy": "Retain",
            "hostPath": {"path": "/nonexistent"},
        },
    }
    path = "/api/v1/persistentvolumes"
    control_plane.admin.create(path, body)
    yield namespace
    control_plane.admin.delete(f"{path}/{namespace}")


async def tried(api: KubeClient, namespace: str, storage_class: str, *, write_s: float = GUARD_S) -> VolumeTrial:
    return await VolumeTrialRunner(api, namespace).try_claim(
        NODE,
        storage_class=storage_class,
        size_mib=8,
        image="busybox",
        bind_timeout_s=GUARD_S,
        write_timeout_s=write_s,
    )


async def nothing_left(api: KubeClient, namespace: str) -> bool:
    """A claim in use is held by a finalizer until its pod is gone: a moment."""
    deadline = time.monotonic() + GUARD_S
    while True:
        pods = (await api.get(f"/api/v1/namespaces/{namespace}/pods"))["items"]
        claims = (await api.get(f"/api/v1/namespaces/{namespace}/persistentvolumeclaims"))["items"]
        if not pods and not claims:
            return True
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(0.05)


async def first(api: KubeClient, path: str) -> str:
    """The name of the first object there, once there is one."""
    deadline = time.monotonic() + GUARD_S
    while True:
        if made := (await api.get(path))["items"]:
            return str(made[0]["metadata"]["name"])
        assert time.monotonic() < deadline, f"nothing was made: {path}"
        await asyncio.sleep(0.02)


async def muster(*words: str, within: Sequence[str] = (), **environment: str) -> tuple[int | None, str]:
    """Exit code and output of the command line, as a process: it has signals to mind. within: what runs it."""
    process = await asyncio.create_subprocess_exec(
        *(*within, sys.executable, "-m", "muster_cli", *words),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env=os.environ | environment,
    )
    said, _ = await process.communicate()
    return process.returncode, said.decode()


async def test_a_claim_is_bound_and_written_and_nothing_is_left(
    api: KubeClient, namespace: str, node: str, volume: str
):
    async with Kubelets(api, script=lambda _: PodScript(run_s=0.1)):
        trial = await tried(api, namespace, volume)
    assert (trial.stage, trial.storage_class) == ("written", volume)
    assert trial.bound_after_s is not None
    assert 0 <= trial.bound_after_s <= (trial.written_after_s or -1)
    assert await nothing_left(api, namespace)


async def test_a_claim_that_nothing_fits_is_unbound_and_the_cluster_says_why(
    api: KubeClient, namespace: str, node: str
):
    passed_s, begun = 0.0, asyncio.Event()

    def clock() -> float:
        begun.set()
        return time.monotonic() + passed_s

    trials = VolumeTrialRunner(api, namespace, clock=clock)
    trying = asyncio.create_task(
        trials.try_claim(
            NODE, storage_class="no-such-class", size_mib=8, image="x", bind_timeout_s=3600, write_timeout_s=1
        )
    )
    place = f"/api/v1/namespaces/{namespace}"
    claim = await first(api, f"{place}/persistentvolumeclaims")
    await first(api, f"{place}/events?fieldSelector=involvedObject.name={claim}")
    await begun.wait()  # of the claim the cluster may speak before the trial's time begins
    passed_s = 3600.0
    await api.patch(f"{place}/persistentvolumeclaims/{claim}", {"metadata": {"labels": {"a": "change"}}})
    trial = await trying
    assert trial.stage == "unbound"
    assert trial.bound_after_s is None
    assert trial.said
    assert await nothing_left(api, namespace)


async def test_a_pod_that_cannot_write_says_so(api: KubeClient, namespace: str, node: str, volume: str):
    async with Kubelets(api, script=lambda _: PodScript(run_s=0.1, exit_code=1)):
        trial = await tried(api, namespace, volume)
    assert trial.stage in ("unwritten", "not-started")  # the simulated kubelet reports no containers
    assert trial.written_after_s is None


async def test_a_node_that_starts_no_pod_proves_nothing_about_storage(
    api: KubeClient, namespace: str, node: str, volume: str
):
    trial = await tried(api, namespace, volume, write_s=5.0)
    assert trial.stage == "not-started"
    assert trial.bound_after_s is not None


async def test_without_a_class_and_a_default_there_is_nothing_to_try(api: KubeClient, namespace: str, node: str):
    assert (await tried(api, namespace, "")).stage == "no-class"
    assert await nothing_left(api, namespace)


async def test_what_a_dead_run_left_behind_is_swept_by_the_next(api: KubeClient, namespace: str, node: str):
    trials = VolumeTrialRunner(api, namespace)
    dying = asyncio.create_task(
        trials.try_claim(
            NODE, storage_class="none", size_mib=8, image="busybox", bind_timeout_s=600, write_timeout_s=600
        )
    )
    pods = f"/api/v1/namespaces/{namespace}/pods"
    left = await first(api, pods)
    later = VolumeTrialRunner(api, namespace, wall=lambda: time.time() + 3600)
    await later.try_claim(
        NODE, storage_class="none", size_mib=8, image="busybox", bind_timeout_s=0.5, write_timeout_s=1
    )
    names = [item["metadata"]["name"] for item in (await api.get(pods))["items"]]
    dying.cancel()
    await asyncio.gather(dying, return_exceptions=True)
    assert left not in names
    assert await nothing_left(api, namespace)


async def test_a_person_tries_it_with_their_own_rights(
    control_plane: ControlPlane, api: KubeClient, node: str, volume: str
):
    words = ["check", "pvc", "--kubeconfig", str(control_plane.kubeconfig), "--node", node]
    async with Kubelets(api, script=lambda _: PodScript(run_s=0.1)):
        code, said = await muster(*words, "--set", f"storage_class={volume}")
    assert code == 0, said
    assert f"storage/{volume} bound" in said


async def test_a_person_on_the_node_itself_names_neither_node_nor_class(
    control_plane: ControlPlane, api: KubeClient, node: str, volume: str
):
    (line,) = commands_of_test(__file__)
    classes = "/apis/storage.k8s.io/v1/storageclasses"
    default = {"name": volume, "annotations": {"storageclass.kubernetes.io/is-default-class": "true"}}
    control_plane.admin.create(classes, {"metadata": default, "provisioner": "kubernetes.io/no-provisioner"})
    there = ["unshare", "--map-root-user", "--uts", "sh", "-c", f'hostname {node} && exec "$@"', "sh"]
    try:
        async with Kubelets(api, script=lambda _: PodScript(run_s=0.1)):
            code, said = await muster(*line.split()[1:], within=there, KUBECONFIG=str(control_plane.kubeconfig))
    finally:
        control_plane.admin.delete(f"{classes}/{volume}")
    assert (line, code) == ("muster check pvc", 0), said
    assert f"PASS     storage/{volume} bound" in said, "the default class is found, and told"


async def test_rights_that_are_lacking_are_unknown_and_named(control_plane: ControlPlane, api: KubeClient, node: str):
    kubeconfig = control_plane.kubeconfig_for_user("nobody")
    words = ["check", "pvc", "--kubeconfig", str(kubeconfig), "--node", node, "--set", "storage_class=x"]
    code, said = await muster(*words)
    assert (code, "forbidden" in said) == (3, True), said
