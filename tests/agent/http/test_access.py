"""Who may have work disturbed: loopback, people and agents with the right; and what is said to everybody else."""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from tests.kube.conftest import FakeApi, Stream, Wire, api, client, config, fake_time, wire  # noqa: F401 - fixtures

from muster_agent.http.access import RIGHT, AccessControl, AccessDenied, Caller
from muster_kube.api.client import KubeClient
from muster_kube.api.config import ClusterConfig
from muster_kube.api.credentials import StaticToken
from muster_kube.api.self_reviews import ACCESS_REVIEWS, AUTHENTICATION, SelfReviews
from muster_kube.run_permit import HEADER, PREFIX, VALID_S, delete_permit, is_permitted, write_permit

POD = "10.1.2.3"
LOCAL = {"host": "127.0.0.1:3333", "user-agent": "curl/8.5"}
AGENT = "system:serviceaccount:muster:muster-agent"


class Cluster:
    """Answers reviews as an API server does: of these users, each with tokens ``NAME@AUDIENCE`` and some rights."""

    def __init__(self, api: FakeApi) -> None:  # noqa: F811 - the fixture
        self.rights: dict[str, set[tuple[str, str]]] = {
            "ann": {("nodehealths", "")},
            "bob": set(),
            AGENT: {("nodehealths", "status")},
        }
        self._api = api
        api.on("POST", ACCESS_REVIEWS, self._may)
        api.on("POST", f"{AUTHENTICATION}/v1/selfsubjectreviews", self._who)

    @property
    def reviews(self) -> int:
        return len(self._api.asked)

    def _user(self, asked: Any) -> str:
        """An API server accepts only tokens for its own audience."""
        token = asked.headers.get("authorization", "").removeprefix("Bearer ")
        user, _, audience = token.replace(".", ":").partition("~")
        return user if user in self.rights and audience == "api" else ""

    def _who(self, asked: Any) -> Any:
        user = self._user(asked)
        return Wire.Reply(201, {"status": {"userInfo": {"username": user}}})

    def _may(self, asked: Any) -> Any:
        user = self._user(asked)
        if not user:
            return Wire.Reply(401, Wire.failure(401, "Unauthorized", "Unauthorized"))
        attributes = json.loads(asked.body)["spec"]["resourceAttributes"]
        assert attributes == {"verb": "patch", "group": "muster.dev", "resource": "nodehealths"}
        return Wire.Reply(201, {"status": {"allowed": ("nodehealths", "") in self.rights[user]}})


@pytest.fixture
def cluster(api: FakeApi) -> Cluster:  # noqa: F811 - the fixture
    return Cluster(api)


@pytest.fixture
def reviews(config: ClusterConfig, fake_time: Any) -> SelfReviews:  # noqa: F811 - the fixtures
    return SelfReviews(config, clock=fake_time.clock)


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}", "host": "10.1.2.9:3333"}


async def denied(
    access: AccessControl, headers: Mapping[str, str], host: str | None = POD, needs: str = "force"
) -> AccessDenied:
    with pytest.raises(AccessDenied) as caught:
        await access.caller(headers, host, needs=needs)
    return caught.value


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1"])
async def test_loopback_may_do_everything_without_a_token(cluster: Cluster, reviews: SelfReviews, host: str):
    assert await AccessControl(reviews).caller(LOCAL, host, needs="force") == Caller(trusted=True)
    assert await AccessControl(None).caller(LOCAL, host, needs="force") == Caller(trusted=True)
    assert cluster.reviews == 0


@pytest.mark.parametrize("host", [POD, "::ffff:10.1.2.3", "fe80::1%eth0", "localhost", "", None])
async def test_a_stranger_may_ask_what_disturbs_nobody_and_costs_no_review(
    cluster: Cluster, reviews: SelfReviews, host: str | None
):
    assert await AccessControl(reviews).caller(LOCAL, host) == Caller()
    assert await AccessControl(reviews).caller(LOCAL | bearer("nobody~muster"), host) == Caller()
    assert cluster.reviews == 0


@pytest.mark.parametrize("host", [POD, None])
async def test_what_disturbs_takes_a_token_from_anywhere_else(reviews: SelfReviews, host: str | None):
    error = await denied(AccessControl(reviews), {}, host)
    assert error.status == 401
    assert all(token in error.message for token in ("force", "port-forward", "Authorization: Bearer", RIGHT))


async def test_what_a_proxy_says_of_the_caller_is_not_believed(reviews: SelfReviews):
    forged = {"x-forwarded-for": "127.0.0.1", "x-real-ip": "127.0.0.1", "forwarded": "for=127.0.0.1"}
    assert (await denied(AccessControl(reviews), forged)).status == 401


async def test_a_person_with_the_right_is_trusted(cluster: Cluster, reviews: SelfReviews):
    caller = await AccessControl(reviews).caller(bearer("ann~api"), POD, needs="force")
    assert caller == Caller(trusted=True, user="ann")
    made = cluster.reviews
    assert await AccessControl(reviews).caller(bearer("ann~api"), POD, needs="force") == caller
    assert cluster.reviews == made, "the answer is kept for a while"


@pytest.mark.parametrize("user", ["bob", AGENT])
async def test_whoever_lacks_the_right_is_told_which(cluster: Cluster, reviews: SelfReviews, user: str):
    error = await denied(AccessControl(reviews), bearer(f"{user.replace(':', '.')}~api"))
    assert error.status == 403
    assert all(fact in error.message for fact in ("force", user, RIGHT))


async def test_a_user_whose_name_the_api_server_does_not_tell_is_trusted_by_the_right(
    api: FakeApi,  # noqa: F811 - the fixture
    cluster: Cluster,
    reviews: SelfReviews,
):
    gone = Wire.Reply(404, Wire.failure(404, "NotFound", "no such resource"))
    for version in ("v1", "v1beta1"):
        api.on("POST", f"{AUTHENTICATION}/{version}/selfsubjectreviews", gone)
    assert await AccessControl(reviews).caller(bearer("ann~api"), POD, needs="force") == Caller(trusted=True)


@pytest.mark.parametrize("token", ["ann~muster", "nobody~api", "ann", "x" * 20_000, "a\tb", "ann~api, x"])
async def test_a_token_that_is_not_good_here_is_nobodys(cluster: Cluster, reviews: SelfReviews, token: str):
    error = await denied(AccessControl(reviews), bearer(token))
    assert error.status == 401
    assert token not in error.message


async def test_a_token_is_reviewed_with_no_credentials_but_itself(
    api: FakeApi,  # noqa: F811 - the fixture
    cluster: Cluster,
    config: ClusterConfig,  # noqa: F811 - the fixture
):
    """A client certificate of the agent would authenticate the review, whatever the token is."""
    config = replace(config, client_certificate=b"c", client_key=b"k", credentials=StaticToken("of-the-agent"))
    reviews = SelfReviews(config)
    assert await reviews.review("ann~api", "patch", "muster.dev", "nodehealths")
    assert reviews._config.client_certificate is None
    assert {asked.headers["authorization"] for asked in api.asked} == {"Bearer ann~api"}


@pytest.mark.parametrize("given", ["Basic YW5uOnB3", "Bearer", "Bearer  ", "ann~muster"])
async def test_any_other_authorization_is_none(reviews: SelfReviews, given: str):
    error = await denied(AccessControl(reviews), {"authorization": given})
    assert error.status == 401
    assert "YW5uOnB3" not in error.message


@pytest.fixture
def health(api: FakeApi) -> dict[str, Any]:  # noqa: F811 - the fixture
    """The NodeHealth node-1 of an API server that takes annotations."""
    kept: dict[str, Any] = {"metadata": {"name": "node-1", "annotations": {}}}

    def patch(asked: Any) -> Any:
        for key, value in json.loads(asked.body)["metadata"]["annotations"].items():
            kept["metadata"]["annotations"].pop(key, None)
            if value is not None:
                kept["metadata"]["annotations"][key] = value
        return Wire.Reply(200, kept)

    path = "/apis/muster.dev/v1alpha1/nodehealths/node-1"
    api.on("PATCH", path, patch)
    api.on("GET", path, lambda _: Wire.Reply(200, kept))
    return kept


async def test_a_permit_proves_the_right_until_it_is_deleted_or_expires(
    client: KubeClient,  # noqa: F811 - the fixture
    health: dict[str, Any],
):
    now = [1_700_000_000.0]
    access = AccessControl(None, permits=partial(is_permitted, client, wall=lambda: now[0]))
    permit = await write_permit(client, "node-1", wall=lambda: now[0])
    headers = {"host": "10.1.2.9:3333", HEADER: permit.header}
    assert await access.caller(headers, POD, needs="force") == Caller(trusted=True)
    assert permit.secret not in str(health)

    now[0] += VALID_S + 1
    assert (await denied(access, headers)).status == 401
    fresh = await write_permit(client, "node-1", wall=lambda: now[0])
    assert list(health["metadata"]["annotations"]) == [fresh.annotation], "expired ones are deleted"
    await delete_permit(client, fresh)
    assert (await denied(access, {HEADER: fresh.header})).status == 401


@pytest.mark.parametrize(
    "header",
    ["node-1", "node-1 short", f"node-2 {'x' * 43}", f"../nodes/a {'x' * 43}", f"node-1 {'x' * 44}", f"A {'x' * 43}"],
)
async def test_a_permit_that_nobody_wrote_proves_nothing(
    client: KubeClient,  # noqa: F811 - the fixture
    health: dict[str, Any],
    header: str,
):
    health["metadata"]["annotations"][PREFIX] = health["metadata"]["annotations"][PREFIX + "x"] = "2999-01-01T00:00:00Z"
    access = AccessControl(None, permits=partial(is_permitted, client))
    assert (await denied(access, {HEADER: header})).status == 401


async def test_the_scheme_is_read_in_any_case(cluster: Cluster, reviews: SelfReviews):
    headers = {"authorization": "bEARER  ann~api "}
    assert (await AccessControl(reviews).caller(headers, POD, needs="force")).user == "ann"


async def test_with_require_token_loopback_is_no_right_and_every_question_takes_one(
    cluster: Cluster, reviews: SelfReviews
):
    access = AccessControl(reviews, require_token=True)
    for needs in ("", "force"):
        error = await denied(access, LOCAL, "127.0.0.1", needs)
        assert error.status == 401
        assert "loopback" not in error.message
        assert (await denied(access, bearer("bob~api"), "127.0.0.1", needs)).status == 403
        assert (await access.caller(bearer("ann~api"), POD, needs=needs)).user == "ann"


async def test_an_agent_without_a_cluster_says_that_nobody_vouches_for_a_token():
    error = await denied(AccessControl(None), bearer("ann~api"))
    assert error.status == 503


async def test_an_api_server_that_refuses_reviews_is_named(api: FakeApi, reviews: SelfReviews):  # noqa: F811 - the fixture
    why = "cannot create selfsubjectaccessreviews"
    api.on("POST", ACCESS_REVIEWS, Wire.Reply(403, Wire.failure(403, "Forbidden", why)))
    error = await denied(AccessControl(reviews), bearer("ann~api"))
    assert error.status == 503
    assert why in error.message


async def test_an_api_server_that_says_nothing_is_not_waited_for_any_longer(
    api: FakeApi,  # noqa: F811 - the fixture
    reviews: SelfReviews,
    loop_time: Any,
):
    api.on("POST", ACCESS_REVIEWS, Stream())
    asking = [asyncio.create_task(denied(AccessControl(reviews, review_s=20.0), bearer("ann~api"))) for _ in range(2)]
    await Wire.until(lambda: api.asked)
    await loop_time.passes(25.0)
    for task in asking:
        error = await task
        assert error.status == 503
        assert " 20 s" in error.message


async def test_reviews_are_made_one_at_a_time(
    api: FakeApi,  # noqa: F811 - the fixture
    reviews: SelfReviews,
    loop_time: Any,
):
    api.on("POST", ACCESS_REVIEWS, Stream())
    access = AccessControl(reviews, review_s=20.0)
    asking = [asyncio.create_task(denied(access, bearer(f"made-up-{n}"))) for n in range(50)]
    await Wire.until(lambda: api.asked)
    assert api.connections == 1, "a flood of tokens takes no second connection"
    await loop_time.passes(25.0)
    assert {error.status for error in await asyncio.gather(*asking)} == {503}


@pytest.mark.parametrize(
    "sent",
    [
        {"sec-fetch-site": "cross-site", "host": "localhost:3333"},
        {"sec-fetch-site": "same-site", "host": "localhost:3333"},
        {"origin": "http://evil.example", "host": "localhost:3333"},
        {"host": "evil.example:3333"},  # its name was made to resolve to 127.0.0.1
        {"host": "127.0.0.1.evil.example"},
    ],
)
async def test_a_web_page_gets_nothing_from_a_port_forward_that_happens_to_be_open(
    reviews: SelfReviews, sent: Mapping[str, str]
):
    assert (await denied(AccessControl(reviews), sent, "127.0.0.1")).status == 401
    assert await AccessControl(reviews).caller(sent, "127.0.0.1") == Caller()


@pytest.mark.parametrize(
    "sent",
    [
        {},
        {"host": "localhost"},
        {"host": "localhost:13333"},
        {"host": "[::1]:3333"},
        {"host": "10.1.2.3:3333"},
        {"host": "localhost:3333", "sec-fetch-site": "none"},
        {"host": "localhost:3333", "sec-fetch-site": "same-origin"},
    ],
)
async def test_people_and_their_tools_keep_loopbacks_right(sent: Mapping[str, str]):
    assert (await AccessControl(None).caller(sent, "127.0.0.1", needs="force")).trusted
