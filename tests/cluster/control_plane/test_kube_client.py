"""The Kubernetes layer against a real API server: what a scripted one cannot vouch for."""

import asyncio
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from uuid import uuid4

import pytest

from muster_agent.findings.health_status import status_patch
from muster_kube.api import errors
from muster_kube.api.client import KubeClient
from muster_kube.api.config import load_config
from muster_kube.api.credentials import StaticToken
from muster_kube.api.objects import ManagedNode, Node, Taint
from muster_kube.controller.lease import LeaderElector, LeaseTiming
from muster_kube.controller.reflector import Reflector
from muster_kube.nodehealth import PATH, AgentIdentity, NodeHealth, NodeHealthStatus, ReportedCheck, ReportedFinding

pytestmark = pytest.mark.cluster

NODES = "/api/v1/nodes"


@pytest.fixture
async def client(control_plane):
    async with KubeClient(load_config(control_plane.kubeconfig), timeout_s=20) as made:
        yield made


@pytest.fixture
async def health(client):
    """A NodeHealth of its own for the test."""
    name = f"kube-{uuid4().hex[:8]}"
    await client.create(PATH, {"apiVersion": "muster.dev/v1alpha1", "kind": "NodeHealth", "metadata": {"name": name}})
    yield f"{PATH}/{name}"
    with suppress(errors.NotFound):
        await client.delete(f"{PATH}/{name}")


@pytest.fixture
async def node(client):
    name = f"kube-{uuid4().hex[:8]}"
    await client.create(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})
    yield f"{NODES}/{name}"
    with suppress(errors.NotFound):
        await client.delete(f"{NODES}/{name}")


@asynccontextmanager
async def running(*reflectors):
    tasks = [asyncio.create_task(r.run()) for r in reflectors]
    try:
        async with asyncio.timeout(60):
            for reflector in reflectors:
                await reflector.wait_synced()
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


async def test_a_patch_decided_on_an_old_version_meets_a_conflict(client, node):
    old = await client.get(node, type=Node)
    await client.patch(node, {"metadata": {"labels": {"a": "b"}}})
    body = {"metadata": {"resourceVersion": old.metadata.resource_version}, "spec": {"taints": []}}
    with pytest.raises(errors.Conflict):
        await client.patch(node, body, type=Node)


async def test_a_taint_patch_returns_the_node_as_it_is_now(client, node):
    taint = Taint(key="muster.dev/faulty", value="true", effect="NoSchedule")
    try:
        patched = await client.patch(node, {"spec": {"taints": [taint]}}, type=Node)
        assert taint in patched.spec.taints
    finally:
        await client.patch(node, {"spec": {"taints": None}})


async def test_managed_fields_name_who_wrote(client, node):
    await client.apply(
        node, {"apiVersion": "v1", "kind": "Node", "metadata": {"labels": {"x": "y"}}}, field_manager="muster-test"
    )
    found = await client.get(node, type=ManagedNode)
    assert "muster-test" in {entry.manager for entry in found.metadata.managed_fields}


async def test_errors_come_typed(client, node, control_plane):
    with pytest.raises(errors.NotFound, match="absent"):
        await client.get(f"{NODES}/absent", type=Node)
    name = node.rpartition("/")[2]
    with pytest.raises(errors.AlreadyExists):
        await client.create(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})
    with pytest.raises(errors.Invalid):
        await client.create(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "Not A Name"}})
    wrong = replace(client.config, client_certificate=None, client_key=None, credentials=StaticToken("wrong"))
    async with KubeClient(wrong, timeout_s=30.0) as stranger:
        with pytest.raises(errors.Unauthorized):
            await stranger.get(NODES)


async def test_another_name_in_the_certificate_can_be_asked_for(client):
    config = replace(client.config, tls_server_name="kubernetes.default.svc")
    try:
        async with KubeClient(config, timeout_s=30.0) as other:
            assert (await other.get("/version"))["major"] == "1"
    except errors.Unreachable as error:  # the bed's certificate need not carry that name: then the name was compared
        assert "kubernetes.default.svc" in str(error)  # noqa: PT017 - either outcome shows that the name is used
    async with KubeClient(replace(client.config, tls_server_name="other.example"), timeout_s=30.0) as other:
        with pytest.raises(errors.Unreachable, match=r"other\.example"):
            await other.get("/version")


async def test_a_status_written_is_the_status_read(client, health):
    finding = ReportedFinding(component="gpu/0", reason="Xid79", verdict="FAIL", fault_class="reboot", origin="kernel")
    full = NodeHealthStatus(
        verdict="FAIL",
        failing="dmesg",
        message="GPU has fallen off the bus",
        checks=(ReportedCheck(name="dmesg", verdict="FAIL", findings=(finding,)),),
        agent=AgentIdentity(pod_uid="u", version="1"),
        boot_id="b",
    )
    assert (await client.patch(f"{health}/status", status_patch(full), type=NodeHealth)).status == full
    clean = NodeHealthStatus(verdict="PASS", agent=AgentIdentity(version="1"))
    assert (await client.patch(f"{health}/status", status_patch(clean), type=NodeHealth)).status == clean


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/status", {"status": {"verdict": "FINE"}}),
        ("/status", {"status": {"checks": [{"name": "x", "verdict": "PASS", "message": "m" * 257}]}}),
        ("/status", {"status": {"due": ["x"] * 129}}),
        ("", {"spec": {"clear": [{"check": "x", "component": "*", "occurrence": -1}]}}),
        ("", {"spec": {"clear": [{"check": "x", "component": "*", "occurrence": 1}] * 33}}),
        ("", {"spec": {"requests": [{"id": "a"}, {"id": "a"}]}}),
        ("", {"spec": {"requests": [{"id": "a", "expires": "tomorrow"}]}}),
        ("", {"spec": {"requests": "now"}}),
    ],
)
async def test_the_schema_refuses_what_is_out_of_bounds(client, health, path, body):
    with pytest.raises(errors.Invalid):
        await client.patch(health + path, body)


async def test_requesters_apply_and_own_their_own_requests(client, health):
    name = health.rpartition("/")[2]
    body = {"apiVersion": "muster.dev/v1alpha1", "kind": "NodeHealth", "metadata": {"name": name}}
    for requester in ("one", "two"):
        await client.apply(health, {**body, "spec": {"requests": [{"id": requester}]}}, field_manager=requester)
    await client.apply(health, {**body, "spec": {}}, field_manager="one")
    left = await client.get(health, type=NodeHealth)
    assert [request.id for request in left.spec.requests] == ["two"]


async def test_a_reflector_sees_what_happens_and_a_write_is_not_undone(client, health):
    name = health.rpartition("/")[2]
    seen = []

    def note(key, old, new):
        if key == name:
            seen.append(new and new.status.verdict)

    reflector = Reflector(client, PATH, NodeHealth, on_change=note, params={"fieldSelector": f"metadata.name={name}"})
    async with running(reflector):
        async with asyncio.timeout(60):
            while not seen:  # noqa: ASYNC110 - the first list is of the server's cache, which may not have it yet
                await asyncio.sleep(0.01)
        for verdict in ("FAIL", "PASS", "WARN"):
            written = await client.patch(f"{health}/status", {"status": {"verdict": verdict}}, type=NodeHealth)
            reflector.observe(written)
            assert reflector.store[name].status.verdict == verdict
        await client.delete(health)
        async with asyncio.timeout(60):
            while name in reflector.store:  # noqa: ASYNC110 - the store has no event of its own
                await asyncio.sleep(0.01)
    assert seen == ["", "FAIL", "PASS", "WARN", None]
    assert not reflector.connected


async def test_a_reflector_lists_more_than_a_page(client):
    names = [f"kube-page-{n}" for n in range(12)]
    for name in names:
        await client.create(
            PATH,
            {
                "apiVersion": "muster.dev/v1alpha1",
                "kind": "NodeHealth",
                "metadata": {"name": name, "labels": {"page": "x"}},
            },
        )
    try:
        params = {"labelSelector": "page=x", "limit": 5}
        first = await client.list_page(PATH, NodeHealth, params=params)
        rest = await client.list_page(PATH, NodeHealth, params={**params, "continue": first.continue_})
        assert (len(first.items), len(rest.items)) == (5, 5)
        with pytest.raises(errors.ApiError):
            await client.list_page(PATH, NodeHealth, params={**params, "continue": "nonsense"})
    finally:
        for name in names:
            await client.delete(f"{PATH}/{name}")


async def test_two_electors_hand_over_a_real_lease(client, control_plane):
    # tests run on busy machines: long times, and a clean hand-over does not wait for them
    name = f"kube-{uuid4().hex[:8]}"
    timing = LeaseTiming(duration_s=60.0, renew_deadline_s=40.0, retry_s=0.2)
    one, two = (LeaderElector(client, "default", name, identity, timing=timing) for identity in ("one", "two"))
    led = []

    def lead(identity):
        async def work():
            led.append(identity)
            await asyncio.Event().wait()

        return work

    first = asyncio.create_task(one.run(lead("one")))
    async with asyncio.timeout(60):
        while not led:  # noqa: ASYNC110 - what leads is the thing under test
            await asyncio.sleep(0.01)
        second = asyncio.create_task(two.run(lead("two")))
        while two.holder != "one":  # noqa: ASYNC110 - as above
            await asyncio.sleep(0.01)
        assert led == ["one"]
        first.cancel()
        while len(led) < 2:  # noqa: ASYNC110 - as above
            await asyncio.sleep(0.01)
    assert two.leading()
    assert not one.leading()
    second.cancel()
    await asyncio.wait([first, second])
    lease = await client.get(f"/apis/coordination.k8s.io/v1/namespaces/default/leases/{name}")
    assert lease["spec"]["holderIdentity"] == ""
    assert lease["spec"]["leaseTransitions"] == 1
