"""POST /api/clear: who may say that a fault is over, what is written in whose name, and what is refused."""

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import msgspec
import pytest
from tests.browser.fleet_server import FleetServer
from tests.browser.sample_fleet import LINK_DOWN, XID31, make_fleet, xid79
from tests.kube.conftest import Reply
from tests.plain_http import plain_http

from muster_kube.nodehealth import PATH

NOW = 1_800_000_000.0
NODE = "h100-h001-01"


class Api:
    """What the API server was asked to write. conflicts: so many writes are refused first."""

    def __init__(self) -> None:
        self.written: list[dict[str, Any]] = []
        self.conflicts = 0
        self.status = 200

    def patched(self, asked: Any) -> Reply:
        self.written.append(json.loads(asked.body))
        if self.conflicts:
            self.conflicts -= 1
            return Reply(409, {"kind": "Status", "code": 409, "reason": "Conflict", "message": "moved on"})
        return Reply(self.status, {"metadata": {"name": NODE}})

    @property
    def cleared(self) -> list[tuple[str, str, int, str]]:
        return [(e["check"], e["component"], e["occurrence"], e["by"]) for e in self.written[-1]["spec"]["clear"]]


@pytest.fixture
def api() -> Api:
    return Api()


@pytest.fixture
async def stand(api: Api) -> AsyncIterator[FleetServer]:
    fleet = make_fleet(10, NOW)
    fleet.break_node(NODE, "dmesg", xid79(occurrence=4))
    fleet.break_node(NODE, "nic", LINK_DOWN)
    async with FleetServer(fleet).running() as running:
        running.script_node(NODE, api.patched)
        yield running


async def ask(stand: FleetServer, bearer: str = "t-ada", body: bytes | None = None, **asked: Any) -> httpx2.Response:
    headers = {"authorization": f"Bearer {bearer}"} if bearer else {}
    content = json.dumps({"node": NODE} | asked).encode() if body is None else body
    async with plain_http(60, stand.url) as http:
        return await http.post("/api/clear", content=content, headers=headers)


async def test_who_may_patch_the_nodehealth_clears_in_their_own_name(stand: FleetServer, api: Api) -> None:
    answer = await ask(stand)
    assert answer.status_code == 200
    assert api.cleared == [("dmesg", "gpu/0000:3b:00.0", 4, "ada"), ("nic", "nic/mlx5_3", 1, "ada")]
    assert answer.json()["by"] == "ada"
    assert api.written[0]["metadata"]["resourceVersion"] == stand.fleet.healths[NODE].metadata.resource_version


async def test_only_the_named_check_or_component_is_cleared(stand: FleetServer, api: Api) -> None:
    await ask(stand, check="nic")
    assert api.cleared == [("nic", "nic/mlx5_3", 1, "ada")]
    await ask(stand, check="dmesg", component="gpu/0000:3b:00.0")
    assert api.cleared == [("dmesg", "gpu/0000:3b:00.0", 4, "ada")]


async def test_what_was_cleared_before_stays_cleared(stand: FleetServer, api: Api) -> None:
    await ask(stand, check="nic")
    [entry] = api.written[-1]["spec"]["clear"]
    known = stand.fleet.healths[NODE]
    spec = msgspec.convert({"clear": [entry]}, type(known.spec))
    stand.fleet.healths[NODE] = msgspec.structs.replace(known, spec=spec)
    await ask(stand, check="dmesg")
    assert [check for check, *_ in api.cleared] == ["nic", "dmesg"]


async def test_nothing_to_clear_writes_nothing(stand: FleetServer, api: Api) -> None:
    answer = await ask(stand, check="gputemp")
    assert (answer.status_code, answer.json()["cleared"], api.written) == (200, [], [])


async def test_a_finding_without_a_fault_can_be_cleared_too(stand: FleetServer, api: Api) -> None:
    stand.fleet.break_node(NODE, "dmesg", XID31)
    await ask(stand, check="dmesg")
    assert api.cleared[0][:2] == ("dmesg", "gpu/0000:3b:00.0")


@pytest.mark.parametrize(
    ("token", "status", "reason", "facts"),
    [
        ("", 401, "Unauthorized", ["Authorization: Bearer TOKEN"]),
        ("t-nobody", 401, "Unauthorized", ["token"]),
        ("t-bob", 403, "Forbidden", ["bob", "patch", "nodehealths.muster.dev", NODE]),
    ],
)
async def test_nobody_else_clears_anything(
    stand: FleetServer, api: Api, token: str, status: int, reason: str, facts: list[str]
) -> None:
    answer = await ask(stand, token)
    assert (answer.status_code, answer.json()["reason"]) == (status, reason)
    assert [fact for fact in facts if fact not in answer.json()["message"]] == []
    assert api.written == []
    assert stand.api.asked_for("GET", f"{PATH}/{NODE}") == []


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "body"),
        (b"[]", "body"),
        (b'{"check": "nic"}', "node"),
        (b'{"node": "a/../b"}', "node"),
        (b'{"node": "n1", "component": 5}', "component"),
        (b'{"node": "n1", "chekc": "nic"}', "chekc"),
        (b'{"node": "n1", "check": ""}', "check"),
    ],
)
async def test_a_body_that_makes_no_sense_is_refused_with_its_field(stand: FleetServer, body: bytes, said: str) -> None:
    answer = await ask(stand, body=body)
    assert answer.status_code == 400
    assert said in answer.json()["message"]


async def test_a_body_that_has_no_end_is_refused(stand: FleetServer) -> None:
    assert (await ask(stand, body=b'{"node": "' + b"n" * 10_000)).status_code == 413


async def test_a_get_clears_nothing(stand: FleetServer) -> None:
    async with plain_http(60, stand.url) as http:
        assert (await http.get("/api/clear")).status_code == 405


async def test_an_unknown_node_is_said_to_be_unknown(stand: FleetServer) -> None:
    answer = await ask(stand, node="none-such")
    assert (answer.status_code, answer.json()["reason"]) == (404, "NotFound")


async def test_who_writes_in_between_makes_it_try_again(stand: FleetServer, api: Api) -> None:
    api.conflicts = 2
    assert (await ask(stand)).status_code == 200
    assert len(api.written) == 3


async def test_who_always_writes_in_between_makes_it_give_up_and_say_so(stand: FleetServer, api: Api) -> None:
    api.conflicts = 99
    answer = await ask(stand)
    assert (answer.status_code, answer.json()["reason"], len(api.written)) == (409, "Conflict", 5)


async def test_an_api_server_that_fails_is_told_of(stand: FleetServer, api: Api) -> None:
    api.status = 500
    answer = await ask(stand)
    assert (answer.status_code, answer.json()["reason"]) == (503, "ServiceUnavailable")
