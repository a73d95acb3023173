"""Which nodes there are and where their agents answer, from a scripted API server; and what the tainter is asked."""

import asyncio
import tracemalloc
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.kube.conftest import (  # noqa: F401 - fixtures
    Drop,
    FakeApi,
    FakeTime,
    Reply,
    Wire,
    api,
    client,
    config,
    fake_time,
)

from muster_agent.fleet import PeerAgent
from muster_agent.fleet.members import DISCOVERY, AgentService, BadNodeSelection, FleetMembers, FleetUnknown
from muster_agent.fleet.tainter_access import TainterAccess
from muster_kube.api.client import KubeClient
from muster_kube.nodehealth import PATH as HEALTHS

V1 = f"{DISCOVERY}/v1/namespaces/muster/endpointslices"
V1BETA1 = f"{DISCOVERY}/v1beta1/namespaces/muster/endpointslices"
HTTP = {"name": "http", "port": 3333, "protocol": "TCP"}


def listing(*items: dict[str, Any], more: str = "") -> Reply:
    return Reply(200, {"kind": "List", "metadata": {"resourceVersion": "7", "continue": more}, "items": list(items)})


def health(name: str) -> dict[str, Any]:
    return {
        "apiVersion": "muster.dev/v1alpha1",
        "kind": "NodeHealth",
        "metadata": {"name": name},
        "status": {"due": []},
    }


def endpoint(node: str, *found: str, version: str = "1", **conditions: bool) -> dict[str, Any]:
    target = {"kind": "Pod", "name": f"agent-{node}", "resourceVersion": version}
    return {"addresses": list(found), "nodeName": node, "conditions": conditions, "targetRef": target}


def endpoint_slice(*endpoints: dict[str, Any], kind: str = "IPv4", ports: Any = (HTTP,)) -> dict[str, Any]:
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"name": "autopilot-healthchecks-x", "namespace": "muster"},
        "addressType": kind,
        "endpoints": list(endpoints),
        "ports": ports if ports is None else list(ports),
    }


def serve(api: FakeApi, names: list[str], *slices: dict[str, Any], versions: tuple[str, ...] = ("v1",)) -> None:  # noqa: F811
    group = {"kind": "APIGroup", "versions": [{"groupVersion": f"x/{v}", "version": v} for v in versions]}
    api.on("GET", DISCOVERY, Reply(200, group))
    api.on("GET", HEALTHS, listing(*(health(name) for name in names)))
    api.on("GET", V1 if "v1" in versions else V1BETA1, listing(*slices))


@pytest.fixture
def fleet(client: KubeClient, fake_time: FakeTime) -> FleetMembers:  # noqa: F811 - the fixtures
    return FleetMembers(client, "node-1", AgentService("muster", "autopilot-healthchecks"), clock=fake_time.clock)


async def test_nodes_are_those_with_a_nodehealth_and_addresses_those_of_the_service(api: FakeApi, fleet: FleetMembers):  # noqa: F811
    ends = [endpoint("node-1", "10.0.0.1"), endpoint("node-2", "10.0.0.2"), endpoint("stray", "10.0.0.9")]
    serve(api, ["node-1", "node-2", "node-3"], endpoint_slice(*ends))
    assert await fleet.list_members() == {
        "node-1": PeerAgent("node-1", "10.0.0.1", 3333),
        "node-2": PeerAgent("node-2", "10.0.0.2", 3333),
        "node-3": PeerAgent("node-3", ""),  # no agent there, and people want to know
    }
    [asked] = api.asked_for("GET", V1)
    assert asked.query == {
        "labelSelector": "kubernetes.io/service-name=autopilot-healthchecks",
        "resourceVersion": "0",
        "limit": "500",
    }
    [asked] = api.asked_for("GET", HEALTHS)
    assert asked.query == {"resourceVersion": "0", "limit": "500"}


async def test_this_node_is_there_though_the_tainter_has_not_made_its_nodehealth(api: FakeApi, fleet: FleetMembers):  # noqa: F811
    serve(api, ["node-2"])
    assert await fleet.list_members() == {"node-1": PeerAgent("node-1", ""), "node-2": PeerAgent("node-2", "")}


async def test_agents_that_are_not_ready_are_asked_too(api: FakeApi, fleet: FleetMembers):  # noqa: F811 - the fixture
    serve(api, ["node-2"], endpoint_slice(endpoint("node-2", "10.0.0.2", ready=False, serving=False)))
    assert (await fleet.list_members())["node-2"].address == "10.0.0.2"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ({"terminating": True, "version": "90"}, {"ready": False, "serving": False}),
        ({"ready": True, "serving": False, "version": "90"}, {"ready": True, "serving": True}),
        ({"ready": False, "version": "90"}, {"ready": True}),
        ({"ready": True, "version": "9"}, {"ready": True, "version": "10"}),
        ({"version": "not a number"}, {"version": "10"}),
    ],
)
@pytest.mark.parametrize("newest_last", [True, False])
async def test_of_two_agents_on_one_node_the_one_that_stays_is_asked(
    api: FakeApi,  # noqa: F811 - the fixture
    fleet: FleetMembers,
    old: dict[str, Any],
    new: dict[str, Any],
    newest_last: bool,
):
    both = [endpoint("node-2", "10.0.0.8", **old), endpoint("node-2", "10.0.0.2", **new)]
    serve(api, ["node-2"], endpoint_slice(*(both if newest_last else reversed(both))))
    assert (await fleet.list_members())["node-2"].address == "10.0.0.2"


async def test_below_1_21_slices_are_v1beta1_and_name_nodes_by_topology(api: FakeApi, fleet: FleetMembers):  # noqa: F811
    old = {"addresses": ["10.0.0.2"], "topology": {"kubernetes.io/hostname": "node-2"}, "conditions": {"ready": True}}
    new = endpoint("node-3", "10.0.0.3")
    serve(api, ["node-2", "node-3"], endpoint_slice(old, new), versions=("v1beta1",))
    members = await fleet.list_members()
    assert (members["node-2"].address, members["node-3"].address) == ("10.0.0.2", "10.0.0.3")


async def test_the_version_is_found_out_once_and_again_when_a_cluster_was_upgraded(
    api: FakeApi,  # noqa: F811 - the fixture
    fleet: FleetMembers,
    fake_time: FakeTime,  # noqa: F811 - the fixture
):
    serve(api, ["node-2"], endpoint_slice(endpoint("node-2", "10.0.0.2")), versions=("v1beta1",))
    await fleet.list_members()
    fake_time.now += 10
    await fleet.list_members()
    assert len(api.asked_for("GET", DISCOVERY)) == 1
    api.on("GET", V1BETA1, Reply(404, Wire.failure(404, "NotFound")))
    serve(api, ["node-2"], endpoint_slice(endpoint("node-2", "10.0.0.22")), versions=("v1",))
    fake_time.now += 10
    assert (await fleet.list_members())["node-2"].address == "10.0.0.22"
    assert len(api.asked_for("GET", DISCOVERY)) == 2


async def test_a_server_without_endpointslices_is_named(api: FakeApi, fleet: FleetMembers):  # noqa: F811 - the fixture
    serve(api, ["node-2"], versions=("v2",))
    with pytest.raises(FleetUnknown, match=r"discovery.k8s.io .*v2.* v1, v1beta1"):
        await fleet.list_members()


@pytest.mark.parametrize(
    ("ports", "port"),
    [
        ([{"name": "http", "port": 8080}], 8080),
        ([{"name": "metrics", "port": 9000}, {"name": "http", "port": 3333}], 3333),
        ([{"name": "", "port": 4444, "protocol": "TCP"}], 4444),
        ([{"name": "http", "port": 1, "protocol": "UDP"}, {"name": "x", "port": 2}], 2),
        ([{"name": "http", "port": None}], 3333),
        ([], 3333),
        (None, 3333),
    ],
)
async def test_the_port_is_the_services(api: FakeApi, fleet: FleetMembers, ports: Any, port: int):  # noqa: F811
    serve(api, ["node-2"], endpoint_slice(endpoint("node-2", "10.0.0.2"), ports=ports))
    assert (await fleet.list_members())["node-2"].port == port


async def test_addresses_are_of_either_family_and_nothing_else(api: FakeApi, fleet: FleetMembers):  # noqa: F811 - the fixture
    serve(
        api,
        ["node-2", "node-3", "node-4"],
        endpoint_slice(endpoint("node-2", "fd00:0:0::2"), kind="IPv6"),
        endpoint_slice(endpoint("node-3", "evil.example"), kind="FQDN"),
        endpoint_slice(endpoint("node-4"), {"addresses": ["10.0.0.5"]}),
        endpoint_slice() | {"endpoints": None},
    )
    members = await fleet.list_members()
    assert [members[f"node-{n}"].address for n in (2, 3, 4)] == ["fd00::2", "", ""]


async def test_a_slice_that_cannot_be_read_costs_no_other(api: FakeApi, fleet: FleetMembers, caplog: Any):  # noqa: F811
    serve(api, ["node-2"], endpoint_slice(endpoint("node-2", "10.0.0.2")), endpoint_slice() | {"endpoints": 7})
    assert (await fleet.list_members())["node-2"].address == "10.0.0.2"
    assert "autopilot-healthchecks-x" in caplog.text


async def test_callers_at_once_share_a_list_and_it_is_kept_for_five_seconds(
    api: FakeApi,  # noqa: F811 - the fixture
    fleet: FleetMembers,
    fake_time: FakeTime,  # noqa: F811 - the fixture
):
    serve(api, ["node-2"])
    await asyncio.gather(*(fleet.list_members() for _ in range(20)))
    fake_time.now += 4.9
    await fleet.list_members()
    assert len(api.asked_for("GET", HEALTHS)) == 1
    fake_time.now += 0.2
    await fleet.list_members()
    assert len(api.asked_for("GET", HEALTHS)) == 2


async def test_a_caller_who_hangs_up_does_not_take_the_list_from_the_others(api: FakeApi, fleet: FleetMembers):  # noqa: F811
    serve(api, ["node-2"])
    first, second = asyncio.create_task(fleet.list_members()), asyncio.create_task(fleet.list_members())
    await asyncio.sleep(0)
    first.cancel()
    assert set(await second) == {"node-1", "node-2"}


async def test_after_a_failure_the_next_caller_asks_again(api: FakeApi, fleet: FleetMembers):  # noqa: F811 - the fixture
    serve(api, ["node-2"])
    why = "cannot list endpointslices"
    refused = Reply(403, Wire.failure(403, "Forbidden", why))
    api.on("GET", V1, refused, listing(endpoint_slice(endpoint("node-2", "10.0.0.2"))))
    with pytest.raises(FleetUnknown, match=why):
        await fleet.list_members()
    assert (await fleet.list_members())["node-2"].address == "10.0.0.2"


async def test_the_list_is_given_back_when_nobody_asks_any_more(
    api: FakeApi,  # noqa: F811 - the fixture
    fleet: FleetMembers,
    loop_time: Any,
):
    names = [f"node-{n}" for n in range(15_000)]
    serve(api, names, endpoint_slice(*(endpoint(name, "10.0.0.2") for name in names)))
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        members = await fleet.list_members()
        assert len(members) == 15_000
        del members
        held, _ = tracemalloc.get_traced_memory()
        await loop_time.passes(60.0)
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held - before < 8e6, "names and addresses, and nothing else of 15,000 objects"
    assert after - before < 1e6


async def test_a_list_in_pages_is_read_to_its_end(api: FakeApi, fleet: FleetMembers):  # noqa: F811 - the fixture
    serve(api, [])
    api.on("GET", HEALTHS, listing(health("node-2"), more="x=="), listing(health("node-3")))
    assert set(await fleet.list_members()) == {"node-1", "node-2", "node-3"}
    assert api.asked_for("GET", HEALTHS)[1].query == {"continue": "x==", "limit": "500"}


async def test_nodes_are_chosen_by_name_and_all_without_one(api: FakeApi, fleet: FleetMembers):  # noqa: F811 - the fixture
    serve(api, ["node-3", "node-2"], endpoint_slice(endpoint("node-2", "10.0.0.2")))
    assert await fleet.select(["node-3", "node-2"]) == [PeerAgent("node-2", "10.0.0.2"), PeerAgent("node-3", "")]
    assert [peer.node for peer in await fleet.select()] == ["node-1", "node-2", "node-3"]


async def test_names_that_no_node_has_are_told_with_those_that_exist(api: FakeApi, fleet: FleetMembers):  # noqa: F811
    serve(api, [f"node-{n:05}" for n in range(15_000)])
    with pytest.raises(BadNodeSelection) as caught:
        await fleet.select(["node-00001", *(f"typo-{n:05}" for n in range(10_000))])
    text = str(caught.value)
    assert text.startswith("host: typo-00000, typo-00001, ")
    assert all(token in text for token in (" 9980 ", " node-00000, ", " 14981 "))
    assert len(text) < 1000


class Tainted:
    """A tainter's HTTP side."""

    def __init__(self, api: FakeApi) -> None:  # noqa: F811 - the fixture
        self.api = api

    def fleet(self, client: KubeClient, token: Path = Path("/dev/null/none")) -> FleetMembers:  # noqa: F811 - the fixture
        url = f"http://127.0.0.1:{self.api.port}"
        return FleetMembers(
            client, "node-1", AgentService("muster", "autopilot-healthchecks"), tainter=TainterAccess(url, token)
        )


@pytest.fixture
async def tainter() -> AsyncIterator[Tainted]:
    made = FakeApi()
    await made.start()
    yield Tainted(made)
    await made.stop()


async def test_jobs_and_labels_are_the_tainters_to_know(
    api: FakeApi,  # noqa: F811 - the fixture
    client: KubeClient,  # noqa: F811 - the fixture
    tainter: Tainted,
    tmp_path: Path,
):
    serve(api, ["node-2", "node-3", "node-4"])
    rows = [{"node": name, "health": "pass", "faults": []} for name in ("node-4", "node-2", "gone")]
    labelled = [{"node": "node-3", "health": "pass", "faults": []}]
    tainter.api.on("GET", "/api/nodes", Reply(200, rows), Reply(200, labelled))
    (tmp_path / "token").write_text("t-1")
    fleet = tainter.fleet(client, token=tmp_path / "token")
    chosen = await fleet.select(job="team-a:app=train")
    assert [peer.node for peer in chosen] == ["node-2", "node-4"]
    [request] = tainter.api.asked
    assert request.query == {"job": "team-a:app=train"}
    assert request.headers["authorization"] == "Bearer t-1"
    assert [peer.node for peer in await fleet.select(["node-1"], nodelabel="a=b")] == ["node-1", "node-3"]
    assert tainter.api.asked[1].query == {"nodelabel": "a=b"}


async def test_nodes_of_a_job_and_nodes_with_a_label_are_added_to_each_other(
    api: FakeApi,  # noqa: F811 - the fixture
    client: KubeClient,  # noqa: F811 - the fixture
    tainter: Tainted,
):
    serve(api, ["node-2", "node-3", "node-4", "node-5"])
    tainter.api.on(
        "GET",
        "/api/nodes",
        *(Reply(200, [{"node": name, "health": "pass", "faults": []}]) for name in ("node-2", "node-4")),
    )
    chosen = await tainter.fleet(client).select(["node-5"], job="a:b=c", nodelabel="d=e")
    assert [peer.node for peer in chosen] == ["node-2", "node-4", "node-5"]


async def test_without_a_token_the_tainter_is_asked_all_the_same(client: KubeClient, tainter: Tainted, tmp_path: Path):  # noqa: F811
    tainter.api.on("GET", "/api/nodes", Reply(200, []))
    assert await tainter.fleet(client, token=tmp_path / "none").resolve_selector("job", "a:b=c") == set()
    assert "authorization" not in tainter.api.asked[0].headers


async def test_without_a_tainter_to_ask_the_setting_is_named(fleet: FleetMembers):
    with pytest.raises(FleetUnknown, match=r"^nodelabel: .*tainter_url"):
        await fleet.resolve_selector("nodelabel", "d=e")


async def test_a_selector_that_the_tainter_calls_wrong_is_the_askers_mistake(client: KubeClient, tainter: Tainted):  # noqa: F811
    tainter.api.on("GET", "/api/nodes", Reply(400, Wire.failure(400, "BadRequest", "job: 'x': expected NS:key=value")))
    with pytest.raises(BadNodeSelection, match=r"^job: 'x': expected NS:key=value$"):
        await tainter.fleet(client).resolve_selector("job", "x")


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (Reply(403, Wire.failure(403, "Forbidden", "no")), "403 Forbidden: no"),
        (Reply(503, b"starting"), "starting"),
        (Reply(200, b"<h1>"), "<h1>"),
        (Reply(200, {"nodes": []}), "BadAnswer"),
        (Reply(200, [{"name": "node-1"}]), "node"),
        (Drop(), "disconnected"),
    ],
)
async def test_whatever_else_the_tainter_does_it_is_named(
    client: KubeClient,  # noqa: F811 - the fixture
    tainter: Tainted,
    answer: Any,
    said: str,
):
    tainter.api.on("GET", "/api/nodes", answer)
    with pytest.raises(FleetUnknown, match=r"nodelabel: .* http://127.0.0.1:") as caught:
        await tainter.fleet(client).resolve_selector("nodelabel", "a=b")
    assert said in str(caught.value)
