"""Responses of a service, and their descriptions in its OpenAPI document."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import msgspec
from fastapi.responses import JSONResponse, PlainTextResponse, Response

SCHEMAS = "#/components/schemas/{name}"
TEXT: Mapping[str, Any] = MappingProxyType({"text/plain": {"schema": {"type": "string"}}})


class StructResponse(JSONResponse):
    """msgspec types as JSON. pydantic does not validate them: Muster has created them, and there may be many."""

    def render(self, content: Any) -> bytes:
        return msgspec.json.encode(content)


def refuse_in_text(status: int, message: str, headers: Mapping[str, str]) -> Response:
    return PlainTextResponse(f"{message}\n", status, dict(headers))


def described(description: str, content: Mapping[str, Any] = TEXT) -> dict[str, Any]:
    """An entry of a route's ``responses``; plain text, unless ``content`` (by media type) is set."""
    return {"description": description, "content": dict(content)}


def struct(kind: type) -> dict[str, Any]:
    """For ``content``: one of the service's types (Service.structs)."""
    return {"schema": {"$ref": SCHEMAS.format(name=kind.__name__)}}
