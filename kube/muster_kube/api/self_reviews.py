"""Checks the right of a token's user with that token itself (SelfSubjectAccessReview).

TokenReview and SubjectAccessReview would need rights of our own (``system:auth-delegator``), with which anybody who
gets our token could test any other token. Here the API server authenticates the token as in any request of its user,
so a token for another audience is rejected. Results are cached for a short time, negative ones for a shorter time.
"""

import hashlib
import re
import time
from collections.abc import Callable
from dataclasses import replace

import msgspec

from muster_kube.api.client import KubeClient
from muster_kube.api.config import ClusterConfig
from muster_kube.api.credentials import StaticToken
from muster_kube.api.errors import ApiError, Forbidden, NotFound, Unauthorized
from muster_kube.api.objects import Api
from muster_kube.api.reviews import NO_S, TOKEN_LIMIT, YES_S, AnswerCache

ACCESS_REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
AUTHENTICATION = "/apis/authentication.k8s.io"
VERSIONS = ("v1", "v1beta1")  # of SelfSubjectReview: since Kubernetes 1.28 and 1.27
_TOKEN = re.compile(r"[-A-Za-z0-9._~+/]+=*", re.ASCII)  # RFC 6750, section 2.1


class TokenUser(msgspec.Struct, frozen=True):
    """may: the user has the right. name: empty if the API server cannot tell it (before Kubernetes 1.27)."""

    may: bool
    name: str = ""


class _AccessStatus(Api, frozen=True):
    allowed: bool = False


class _AccessReview(Api, frozen=True):
    status: _AccessStatus = _AccessStatus()


class _UserInfo(Api, frozen=True):
    username: str = ""


class _UserStatus(Api, frozen=True):
    user_info: _UserInfo = _UserInfo()


class _UserReview(Api, frozen=True):
    status: _UserStatus = _UserStatus()


class SelfReviews:
    """config: the API server. Of its credentials none is used: a client certificate of our own would authenticate the
    request instead of the token."""

    def __init__(self, config: ClusterConfig, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._config = replace(config, client_certificate=None, client_key=None)
        self._users: AnswerCache[TokenUser | None] = AnswerCache(clock)

    async def review(self, token: str, verb: str, group: str, resource: str) -> TokenUser | None:
        """Whether the token's user may ``verb`` the resource in the whole cluster; None if the token is invalid for the
        API server. Raises ApiError and ConfigError; errors are not cached."""
        if len(token) > TOKEN_LIMIT or not _TOKEN.fullmatch(token):
            return None
        key = hashlib.sha256("\0".join((verb, group, resource, token)).encode()).digest()  # tokens are never stored
        if (kept := self._users.get(key)) is not None:
            return kept[0]
        user = await self._review(token, {"verb": verb, "group": group, "resource": resource})
        self._users.keep(key, user, YES_S if user is not None and user.may else NO_S)
        return user

    async def _review(self, token: str, attributes: dict[str, str]) -> TokenUser | None:
        body = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": attributes},
        }
        config = replace(self._config, credentials=StaticToken(token))
        async with KubeClient(config, user_agent="muster-agent", max_connections=1) as client:
            try:
                allowed = (await client.create(ACCESS_REVIEWS, body, type=_AccessReview)).status.allowed
            except Unauthorized:
                return None
            return TokenUser(allowed, await _name(client))


async def _name(client: KubeClient) -> str:
    """The user's name, for the log and for messages; empty if the API server does not tell it."""
    for version in VERSIONS:
        body = {"apiVersion": f"authentication.k8s.io/{version}", "kind": "SelfSubjectReview"}
        try:
            path = f"{AUTHENTICATION}/{version}/selfsubjectreviews"
            return (await client.create(path, body, type=_UserReview)).status.user_info.username
        except (NotFound, Forbidden):
            continue
        except ApiError:
            break
    return ""
