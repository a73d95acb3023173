"""Who a token is and what they may do: what is asked of the API server, what is kept of its answers, and how long."""

import json

import pytest

from muster_kube.api.errors import BadAnswer, Forbidden, Unreachable
from muster_kube.api.reviews import ACCESS_REVIEWS, KEPT_LIMIT, TOKEN_LIMIT, TOKEN_REVIEWS, Identity, Reviews

AGENT = {
    "username": "system:serviceaccount:muster:muster-agent",
    "uid": "u-1",
    "groups": ["system:serviceaccounts", "system:authenticated"],
    "extra": {
        "authentication.kubernetes.io/pod-name": ["agent-7"],
        "authentication.kubernetes.io/pod-uid": ["p-1"],
        "authentication.kubernetes.io/node-name": ["node-7"],
    },
}
WHO = Identity(user="ann", uid="u-2", groups=("dev",), extra={"scopes": ("a",)})


def known(*audiences, user=AGENT):
    return {"status": {"authenticated": True, "user": user, "audiences": list(audiences)}}


def access(allowed):
    return {"status": {"allowed": allowed, "reason": "RBAC: …"}}


@pytest.fixture
def asking(client, fake_time):
    return Reviews(client, clock=fake_time.clock)


async def test_a_token_is_its_user_with_the_pod_and_node_it_is_bound_to(api, asking, wire):
    api.on("POST", TOKEN_REVIEWS, wire.Reply(201, known("muster")))
    identity = await asking.who("t-1", "muster")
    assert (identity.user, identity.uid, identity.groups) == (AGENT["username"], "u-1", tuple(AGENT["groups"]))
    assert identity.service_account == ("muster", "muster-agent")
    assert (identity.pod, identity.pod_uid, identity.node) == ("agent-7", "p-1", "node-7")
    assert json.loads(api.asked[0].body)["spec"] == {"token": "t-1", "audiences": ["muster"]}


async def test_without_an_audience_a_token_for_the_api_server_is_meant(api, asking, wire):
    api.on("POST", TOKEN_REVIEWS, wire.Reply(201, known(user={"username": "ann"})))
    identity = await asking.who("t-1")
    assert (identity.user, identity.service_account, identity.pod, identity.node) == ("ann", None, "", "")
    assert json.loads(api.asked[0].body)["spec"] == {"token": "t-1"}


@pytest.mark.parametrize(
    "answer",
    [
        {"status": {"authenticated": False, "error": "token has expired"}},
        {"status": {"error": "token has expired"}},
        {},
        known("https://kubernetes.default.svc"),
        known(),
        known("muster", user={}),
        known("muster", user={"username": ""}),
    ],
    ids=["refused", "error", "empty", "for others", "of no audience", "of nobody", "of a nameless one"],
)
async def test_a_token_that_is_not_good_for_us_is_nobodys(api, asking, wire, answer):
    api.on("POST", TOKEN_REVIEWS, wire.Reply(201, answer))
    assert await asking.who("t-1", "muster") is None


@pytest.mark.parametrize("token", ["", "x" * (TOKEN_LIMIT + 1)], ids=["empty", "huge"])
async def test_what_can_be_no_token_is_not_asked_about(api, asking, token):
    assert await asking.who(token, "muster") is None
    assert api.asked == []


async def test_a_yes_is_kept_for_a_minute_and_a_no_for_ten_seconds(api, asking, wire, fake_time):
    refused = {"status": {"authenticated": False}}
    api.on("POST", TOKEN_REVIEWS, wire.Reply(201, known("muster")), wire.Reply(201, refused))
    assert await asking.who("t-1", "muster") is not None
    fake_time.now += 59
    assert await asking.who("t-1", "muster") is not None
    assert len(api.asked) == 1
    fake_time.now += 1
    assert await asking.who("t-1", "muster") is None
    fake_time.now += 9
    assert await asking.who("t-1", "muster") is None
    assert len(api.asked) == 2
    fake_time.now += 1
    await asking.who("t-1", "muster")
    assert len(api.asked) == 3


async def test_another_token_or_audience_is_another_question(api, asking, wire):
    api.on("POST", TOKEN_REVIEWS, wire.Reply(201, known("muster")))
    for token, audience in (("t-1", "muster"), ("t-2", "muster"), ("t-1", "vipu"), ("t-1", "")):
        await asking.who(token, audience)
    assert len(api.asked) == 4


async def test_of_too_many_answers_the_oldest_is_asked_for_again(api, asking, wire):
    api.on("POST", TOKEN_REVIEWS, wire.Reply(201, known("muster")))
    for number in range(KEPT_LIMIT + 1):
        await asking.who(f"t-{number}", "muster")
    await asking.who("t-1", "muster")
    assert len(api.asked) == KEPT_LIMIT + 1
    await asking.who("t-0", "muster")
    assert len(api.asked) == KEPT_LIMIT + 2


async def test_what_may_be_done_is_asked_for_the_user_as_the_token_told_them(api, asking, wire):
    api.on("POST", ACCESS_REVIEWS, wire.Reply(201, access(True)))
    assert await asking.may(WHO, "patch", "muster.dev", "nodehealths", subresource="status", namespace="n", name="x")
    assert json.loads(api.asked[0].body)["spec"] == {
        "user": "ann",
        "uid": "u-2",
        "groups": ["dev"],
        "extra": {"scopes": ["a"]},
        "resourceAttributes": {
            "verb": "patch",
            "group": "muster.dev",
            "resource": "nodehealths",
            "subresource": "status",
            "namespace": "n",
            "name": "x",
        },
    }


async def test_rights_are_kept_like_tokens_each_by_its_own_question(api, asking, wire, fake_time):
    api.on("POST", ACCESS_REVIEWS, wire.Reply(201, access(True)), wire.Reply(201, access(False)))
    assert await asking.may(WHO, "create", "", "pods", namespace="a")
    assert not await asking.may(WHO, "create", "", "pods", namespace="b")
    fake_time.now += 9
    assert await asking.may(WHO, "create", "", "pods", namespace="a")
    assert not await asking.may(WHO, "create", "", "pods", namespace="b")
    assert len(api.asked) == 2
    fake_time.now += 1
    assert not await asking.may(WHO, "create", "", "pods", namespace="b")
    assert len(api.asked) == 3
    fake_time.now += 50
    assert not await asking.may(WHO, "create", "", "pods", namespace="a")


async def test_somebody_of_the_same_name_with_other_groups_is_asked_about_anew(api, asking, wire):
    api.on("POST", ACCESS_REVIEWS, wire.Reply(201, access(True)), wire.Reply(201, access(False)))
    assert await asking.may(WHO, "create", "", "pods")
    assert not await asking.may(Identity(user="ann"), "create", "", "pods")


@pytest.mark.parametrize(
    ("path", "ask"),
    [
        (TOKEN_REVIEWS, lambda asking: asking.who("t-1", "muster")),
        (ACCESS_REVIEWS, lambda asking: asking.may(WHO, "create", "", "pods")),
    ],
    ids=["who", "may"],
)
async def test_no_answer_is_an_error_each_time_and_never_a_no(api, asking, wire, path, ask):
    words = "cannot create resource"
    replies = (
        wire.Reply(403, wire.failure(403, "Forbidden", words)),
        wire.Drop(),
        wire.Reply(201, b"<h1>proxy</h1>"),
        wire.Reply(201, {"status": {"authenticated": "yes", "allowed": "yes"}}),
    )
    api.on("POST", path, *replies)
    for error in (Forbidden, Unreachable, BadAnswer, BadAnswer):
        with pytest.raises(error):
            await ask(asking)
    assert len(api.asked) == 4


async def test_two_pods_in_one_claim_are_none():
    assert Identity(user="x", extra={"authentication.kubernetes.io/pod-name": ("a", "b")}).pod == ""
    assert Identity(user="system:serviceaccount:broken").service_account is None
