"""Authenticates bearer tokens and checks permissions with the API server (TokenReview, SubjectAccessReview).

Results are cached for a short time, negative ones for a shorter time, so that a frequent caller costs the API server
one call a minute. Needs the permissions of the ClusterRole ``system:auth-delegator``.
"""

import hashlib
import time
from collections.abc import Callable
from typing import Generic, TypeVar

import msgspec

from muster_kube.api.client import KubeClient
from muster_kube.api.objects import Api

TOKEN_REVIEWS = "/apis/authentication.k8s.io/v1/tokenreviews"  # noqa: S105 - a path
ACCESS_REVIEWS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
YES_S, NO_S = 60.0, 10.0  # how long a positive and a negative result are cached
KEPT_LIMIT = 1024  # results of each kind; the agents of a large fleet call once an hour
TOKEN_LIMIT = 16 << 10  # bytes; a service account's has about one thousand

_SERVICE_ACCOUNT = "system:serviceaccount:"
_CLAIM = "authentication.kubernetes.io/"
V = TypeVar("V")


class Identity(Api, frozen=True):
    """extra: further attributes from the authenticator, by key; see the properties."""

    user: str = msgspec.field(default="", name="username")
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: dict[str, tuple[str, ...]] = msgspec.field(default_factory=dict)

    @property
    def service_account(self) -> tuple[str, str] | None:
        """Namespace and name of a service account; None for any other user."""
        namespace, colon, name = self.user.removeprefix(_SERVICE_ACCOUNT).partition(":")
        return (namespace, name) if self.user.startswith(_SERVICE_ACCOUNT) and colon else None

    @property
    def pod(self) -> str:
        """The pod to which the token is bound; empty if it is bound to none."""
        return self._only("pod-name")

    @property
    def pod_uid(self) -> str:
        return self._only("pod-uid")

    @property
    def node(self) -> str:
        """That pod's node; empty before Kubernetes 1.30."""
        return self._only("node-name")

    def _only(self, claim: str) -> str:
        values = self.extra.get(_CLAIM + claim, ())
        return values[0] if len(values) == 1 else ""


class _TokenStatus(Api, frozen=True):
    authenticated: bool = False
    user: Identity = Identity()
    audiences: tuple[str, ...] = ()


class _TokenReview(Api, frozen=True):
    status: _TokenStatus = _TokenStatus()


class _AccessStatus(Api, frozen=True):
    allowed: bool = False


class _AccessReview(Api, frozen=True):
    status: _AccessStatus = _AccessStatus()


class Reviews:
    """Sends reviews with the client's permissions. Raises its ApiError and ConfigError; errors are not cached."""

    def __init__(self, client: KubeClient, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._client = client
        self._tokens: AnswerCache[Identity | None] = AnswerCache(clock)
        self._access: AnswerCache[bool] = AnswerCache(clock)

    async def who(self, token: str, audience: str = "") -> Identity | None:
        """The user of the token; None if it is invalid or not meant for ``audience`` (empty: the API server)."""
        if not token or len(token) > TOKEN_LIMIT:
            return None
        key = hashlib.sha256(f"{audience}\0{token}".encode()).digest()  # tokens are never stored
        if (kept := self._tokens.get(key)) is not None:
            return kept[0]
        spec = {"token": token} | ({"audiences": [audience]} if audience else {})
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": spec}
        status = (await self._client.create(TOKEN_REVIEWS, body, type=_TokenReview)).status
        # an authenticator without audience support returns none: such a token is for the API server only
        meant = not audience or audience in status.audiences
        identity = status.user if status.authenticated and status.user.user and meant else None
        self._tokens.keep(key, identity, NO_S if identity is None else YES_S)
        return identity

    async def may(
        self,
        identity: Identity,
        verb: str,
        group: str,
        resource: str,
        *,
        subresource: str = "",
        namespace: str = "",
        name: str = "",
    ) -> bool:
        """Whether the user may do it. Empty ``group``: the core group. Empty ``namespace``: the whole cluster."""
        attributes = {
            "verb": verb,
            "group": group,
            "resource": resource,
            "subresource": subresource,
            "namespace": namespace,
            "name": name,
        }
        return await self._check_access(identity, {"resourceAttributes": attributes})

    async def may_ask(self, identity: Identity, verb: str, path: str) -> bool:
        """Whether the user may ``verb`` (get, post …) a non-resource path, such as ``/metrics``."""
        return await self._check_access(identity, {"nonResourceAttributes": {"verb": verb, "path": path}})

    async def _check_access(self, identity: Identity, attributes: dict[str, dict[str, str]]) -> bool:
        spec = {
            "user": identity.user,
            "uid": identity.uid,
            "groups": identity.groups,
            "extra": identity.extra,
            **attributes,
        }
        key = hashlib.sha256(msgspec.json.encode(spec, order="sorted")).digest()
        if (kept := self._access.get(key)) is not None:
            return kept[0]
        body = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec}
        allowed = (await self._client.create(ACCESS_REVIEWS, body, type=_AccessReview)).status.allowed
        self._access.keep(key, allowed, YES_S if allowed else NO_S)
        return allowed


class AnswerCache(Generic[V]):
    """Results with an expiry time. If there are too many, the oldest is dropped."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._answers: dict[bytes, tuple[V, float]] = {}

    def get(self, key: bytes) -> tuple[V] | None:
        found = self._answers.get(key)
        return (found[0],) if found is not None and self._clock() < found[1] else None

    def keep(self, key: bytes, value: V, seconds: float) -> None:
        self._answers.pop(key, None)
        if len(self._answers) >= KEPT_LIMIT:
            del self._answers[next(iter(self._answers))]
        self._answers[key] = (value, self._clock() + seconds)
