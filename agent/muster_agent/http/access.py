"""Authorizes callers of requests that disturb work or cost much: over loopback, with a Kubernetes token, or with a
permit (muster_kube.run_permit).

Requests that everybody may make need no review, so a query of the whole fleet costs the API server no reviews.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from ipaddress import IPv6Address, ip_address

import msgspec

from muster_agent.identity.published_keys import NODE, PublishedKeys
from muster_kube.api.errors import ApiError, ConfigError
from muster_kube.api.self_reviews import SelfReviews
from muster_kube.nodehealth import GROUP, PLURAL
from muster_kube.run_permit import HEADER

REVIEW_S = 10.0  # limit for all reviews of a token, including the wait for those of other callers
RIGHT = f"patch {PLURAL}.{GROUP}"
SCHEME = "bearer"


class AccessDenied(Exception):
    """status: the HTTP status (401, 403 or 503); message: for people."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


class Caller(msgspec.Struct, frozen=True):
    """trusted: may make every request; agent: it is the agent of the node ``user``; user: else the token's user."""

    trusted: bool = False
    agent: bool = False
    user: str = ""


class AccessControl:
    """reviews:       None without a cluster, so that no token can be reviewed
    permits:       whether a permit is valid; None without a cluster
    keys:          those of other agents; None without a cluster
    require_token: every request needs a token, also over loopback
    open_heavy_checks: heavy checks on idle nodes need none
    """

    def __init__(
        self,
        reviews: SelfReviews | None,
        *,
        permits: Callable[[str], Awaitable[bool]] | None = None,
        keys: PublishedKeys | None = None,
        require_token: bool = False,
        open_heavy_checks: bool = False,
        review_s: float = REVIEW_S,
    ) -> None:
        self.open_heavy_checks = open_heavy_checks and not require_token
        self._reviews = reviews
        self._permits = permits
        self._keys = keys
        self._require_token = require_token
        self._review_s = review_s
        # one at a time: callers with invalid tokens must not occupy the connections to the API server
        self._turn = asyncio.Semaphore(1)

    async def caller(
        self, headers: Mapping[str, str], client_host: str | None, *, needs: str = "", fingerprint: str = ""
    ) -> Caller:
        """Identify the caller.

        headers:     by lower-case name
        client_host: address of the peer. X-Forwarded-For is ignored, because any client can set it
        needs:       the parts of the request that need permission (``force``); empty: none
        fingerprint: of the certificate of a client over TLS, which has proved its key; empty: none

        Raises AccessDenied.
        """
        if not self._require_token:
            if _is_loopback(client_host) and not _sent_by_a_web_page(headers):
                return Caller(trusted=True)
            if not needs:
                return Caller()
        needs = needs or "this agent (require_token)"
        try:
            async with asyncio.timeout(self._review_s), self._turn:
                return await self._proved(headers, needs, fingerprint)
        except (ApiError, ConfigError) as error:
            raise AccessDenied(503, f"{needs}: cannot review the permission: {error}") from error
        except TimeoutError as error:
            limit = f"the API server did not answer within {self._review_s:g} s"
            raise AccessDenied(503, f"{needs}: cannot review the permission: {limit}") from error

    async def _proved(self, headers: Mapping[str, str], needs: str, fingerprint: str) -> Caller:
        """By a key, a permit or a token. Raises AccessDenied, ApiError, ConfigError."""
        node, permit = headers.get(NODE.lower(), "") if fingerprint else "", headers.get(HEADER, "")
        token = "" if node or permit else self._token(headers, needs)
        alone = AccessDenied(503, f"{needs}: cannot review the permission: this agent runs without a cluster")
        if node:
            if self._keys is None:
                raise alone
            if await self._keys.belongs(fingerprint, node):
                return Caller(trusted=True, agent=True, user=node)
            raise AccessDenied(
                401, f"{needs}: NodeHealth {node[:64]} publishes another key than that of this caller, or none"
            )
        if permit:
            if self._permits is None:
                raise alone
            if await self._permits(permit):
                return Caller(trusted=True)
            raise AccessDenied(401, f"{needs}: no NodeHealth has this permit, or it has expired: request a new one")
        if self._reviews is None:
            raise alone
        return await _reviewed(self._reviews, token, needs)

    def _token(self, headers: Mapping[str, str], needs: str) -> str:
        given = headers.get("authorization", "")
        scheme, _, token = given.partition(" ")
        if scheme.lower() == SCHEME and token.strip():
            return token.strip()
        # kubectl port-forward is guarded by RBAC, and loopback for the agent
        loopback = "" if self._require_token else "request it over loopback (kubectl port-forward), or "
        found = f"found {scheme!r}" if given else "found no token"
        raise AccessDenied(
            401,
            f"{needs}: permission required: use muster run, {loopback}send a header Authorization: Bearer TOKEN of a "
            f"user who may {RIGHT}; {found}. To let everybody run heavy checks, set open_heavy_checks",
        )


async def _reviewed(reviews: SelfReviews, token: str, needs: str) -> Caller:
    user = await reviews.review(token, "patch", GROUP, PLURAL)
    if user is None:
        raise AccessDenied(
            401, f"{needs}: the API server rejects this token: it may have expired, or be for another audience"
        )
    if not user.may:
        raise AccessDenied(403, f"{needs}: permission denied: {user.name or 'the user of this token'} may not {RIGHT}")
    return Caller(trusted=True, user=user.name)


def _is_loopback(host: str | None) -> bool:
    try:
        address = ip_address(host or "")
    except ValueError:
        return False
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped.is_loopback
    return address.is_loopback


def _sent_by_a_web_page(headers: Mapping[str, str]) -> bool:
    """Whether a web page in a browser caused the request, which it could do over a user's port-forward.

    Browsers send the origin of a request (Sec-Fetch-Site, Origin). A page whose DNS name resolves to 127.0.0.1 (DNS
    rebinding) has that name in the header Host.
    """
    if headers.get("sec-fetch-site", "none") not in ("none", "same-origin") or "origin" in headers:
        return True
    host = headers.get("host", "")
    name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
    try:
        ip_address(name)
    except ValueError:
        return name not in ("", "localhost")
    return False
