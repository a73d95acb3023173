"""Shared by the tainter's HTTP routes: error responses, and the caller's token."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any

from fastapi import Depends, Request
from fastapi.responses import Response
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from muster_kube.http.responses import StructResponse
from muster_tainter.http.volume_trials import HttpRefusal, unauthorized

BODY_LIMIT = 4096  # bytes of a request
BODY_S = 5.0  # time limit for receiving it
_REASONS = {
    400: "BadRequest",
    404: "NotFound",
    405: "MethodNotAllowed",
    408: "Timeout",
    413: "RequestEntityTooLarge",
}
JSON_STATUS: Mapping[str, Any] = MappingProxyType({"application/json": {"schema": {"type": "object"}}})
_BEARER = HTTPBearer(auto_error=False, description="a Kubernetes token: `kubectl create token NAME`")


def refuse(status: int, message: str, headers: Mapping[str, str]) -> Response:
    """An error as in the Kubernetes API: a Status object."""
    return _status(HttpRefusal(status, _REASONS.get(status, "Unknown"), message, headers))


async def refusal_response(_: Request, refusal: Exception) -> Response:
    assert isinstance(refusal, HttpRefusal)  # noqa: S101 - registered for it
    return _status(refusal)


def _status(refusal: HttpRefusal) -> Response:
    status = {"kind": "Status", "code": refusal.status, "reason": refusal.reason, "message": str(refusal)}
    return StructResponse(status, refusal.status, headers=dict(refusal.headers))


async def _bearer_token(credentials: Annotated[HTTPAuthorizationCredentials | None, Depends(_BEARER)]) -> str:
    if credentials is None:
        raise unauthorized("expected a header Authorization: Bearer TOKEN")
    return credentials.credentials


BearerToken = Annotated[str, Depends(_bearer_token)]
