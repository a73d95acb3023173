"""What the tainter's HTTP routes share: answers, refusals, and what a caller sends."""

import asyncio
from collections.abc import Mapping
from types import MappingProxyType

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from muster_tainter.http.volume_trials import HttpRefusal, unauthorized

BODY_LIMIT = 4096  # bytes of a request
BODY_S = 5.0  # in which it has to be here


def json_response(value: object, headers: Mapping[str, str] = MappingProxyType({})) -> Response:
    return Response(msgspec.json.encode(value), headers=headers, media_type="application/json")


def refusal_response(refusal: HttpRefusal) -> Response:
    """As the Kubernetes API says no: a Status, which clients of ours read as such."""
    status = {"kind": "Status", "code": refusal.status, "reason": refusal.reason, "message": str(refusal)}
    return Response(
        msgspec.json.encode(status), refusal.status, headers=dict(refusal.headers), media_type="application/json"
    )


def read_bearer_token(request: Request) -> str:
    kind, _, token = request.headers.get("authorization", "").partition(" ")
    if kind.lower() != "bearer" or not token.strip():
        raise unauthorized("expected a header Authorization: Bearer TOKEN")
    return token.strip()


async def read_body(request: Request) -> bytes:
    """Raises HttpRefusal; ClientDisconnect where nobody is there any more."""
    read = b""
    try:
        async with asyncio.timeout(BODY_S):
            async for chunk in request.stream():
                read += chunk
                if len(read) > BODY_LIMIT:
                    raise HttpRefusal(413, "RequestEntityTooLarge", f"body: more than {BODY_LIMIT} bytes")
    except TimeoutError as error:
        raise HttpRefusal(408, "Timeout", f"body: not here within {BODY_S:g} s") from error
    return read
