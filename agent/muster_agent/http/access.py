"""Who asks, and whether they may disturb work: loopback, or a Kubernetes token that the API server vouches for.

Nobody is reviewed for a question that everybody may ask, so a call over a whole fleet costs the API server no review.
"""

import asyncio
from collections.abc import Mapping
from ipaddress import IPv6Address, ip_address

import msgspec

from muster_kube.api.errors import ApiError, ConfigError
from muster_kube.api.reviews import Identity, Reviews
from muster_kube.nodehealth import GROUP, PLURAL

AUDIENCE = "muster"
REVIEW_S = 10.0  # for all that is asked about one token, the wait for other callers' included
RIGHT = f"patch {PLURAL}.{GROUP}"
SCHEME = "bearer"


class AccessDenied(Exception):
    """``status``: for HTTP (401, 403, 503); ``message``: for people."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


class Caller(msgspec.Struct, frozen=True):
    """trusted: may do all there is; agent: the agent of another node; user: of a token that was needed."""

    trusted: bool = False
    agent: bool = False
    user: str = ""


class AccessControl:
    """``reviews``: None without a cluster, where nobody vouches for a token. require_token: nobody asks for anything
    without one, also over loopback."""

    def __init__(self, reviews: Reviews | None, *, require_token: bool = False, review_s: float = REVIEW_S) -> None:
        self._reviews = reviews
        self._require_token = require_token
        self._review_s = review_s
        # one at a time: strangers with made-up tokens must not take the connections that findings are published on
        self._turn = asyncio.Semaphore(1)

    async def caller(self, headers: Mapping[str, str], client_host: str | None, *, needs: str = "") -> Caller:
        """Who it is. ``needs``: what is asked for that takes the right (``force``); empty: nothing does.

        headers: by lower-case name; client_host: the address that the connection comes from. What a proxy says of it
        (X-Forwarded-For) is not read, as anybody can write that. Raises AccessDenied.
        """
        if not self._require_token:
            if _is_loopback(client_host) and not _sent_by_a_web_page(headers):
                return Caller(trusted=True)
            if not needs:
                return Caller()
        needs = needs or "this agent (require_token)"
        token = self._token(headers, needs)
        if self._reviews is None:
            raise AccessDenied(503, f"{needs}: a token is vouched for by the API server, and this agent knows none")
        try:
            async with asyncio.timeout(self._review_s), self._turn:
                return await _reviewed(self._reviews, token, needs)
        except (ApiError, ConfigError) as error:
            raise AccessDenied(503, f"{needs}: who asks cannot be found out: {error}") from error
        except TimeoutError as error:
            limit = f"no answer of the API server within {self._review_s:g} s"
            raise AccessDenied(503, f"{needs}: who asks cannot be found out: {limit}") from error

    def _token(self, headers: Mapping[str, str], needs: str) -> str:
        given = headers.get("authorization", "")
        scheme, _, token = given.partition(" ")
        if scheme.lower() == SCHEME and token.strip():
            return token.strip()
        # a port-forward is loopback to the agent, and guarded by RBAC
        loopback = "" if self._require_token else "asked over loopback (kubectl port-forward), or "
        expected = f"{loopback}with a header Authorization: Bearer TOKEN of somebody who may {RIGHT}"
        raise AccessDenied(401, f"{needs}: expected to be {expected}; found {f'{scheme!r}' if given else 'no token'}")


async def _reviewed(reviews: Reviews, token: str, needs: str) -> Caller:
    identity: Identity | None = await reviews.who(token, AUDIENCE)
    # an agent is who may write NodeHealths' status: any pod can have itself given a token for our audience
    is_pods = identity is not None and identity.service_account is not None
    if identity is not None and is_pods and await reviews.may(identity, "patch", GROUP, PLURAL, subresource="status"):
        return Caller(trusted=True, agent=True, user=identity.user)
    identity = identity or await reviews.who(token)
    if identity is None:
        raise AccessDenied(
            401, f"{needs}: the API server does not know this token; it may be over, or meant for others"
        )
    if not await reviews.may(identity, "patch", GROUP, PLURAL):
        raise AccessDenied(403, f"{needs}: {identity.user} may not {RIGHT}")
    return Caller(trusted=True, user=identity.user)


def _is_loopback(host: str | None) -> bool:
    try:
        address = ip_address(host or "")
    except ValueError:
        return False
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped.is_loopback
    return address.is_loopback


def _sent_by_a_web_page(headers: Mapping[str, str]) -> bool:
    """Somebody with a port-forward may have any page open: a browser would ask us in its name.

    Browsers say where a request comes from (Sec-Fetch-Site, Origin); a page whose own name was made to resolve to
    127.0.0.1 asks by that name.
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
