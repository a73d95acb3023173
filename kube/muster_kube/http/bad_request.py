"""Error messages for invalid requests: where, what was found, what is allowed.

FastAPI returns 422 with JSON for programs; these messages are for people with curl.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, get_args

from fastapi import Request
from fastapi.dependencies.models import Dependant
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import BaseModel

from muster_kube.process.settings import error_line, quote

ERRORS_SHOWN = 5
FIELDS_LIMIT = 512  # a query may be a megabyte long, and each of its fields is an object


class BadRequest(Exception):
    """Results in a 400 response. The message says where, what was found and what is allowed."""


async def check_query(request: Request) -> None:
    """A dependency of routes: rejects unknown and repeated query parameters. Raises BadRequest."""
    allowed = query_names(request)
    for name in single_values(request):
        if name not in allowed:
            expected = f"expected one of {', '.join(allowed)}" if allowed else "expected no parameters"
            raise BadRequest(f"{quote(name)}: unknown parameter; {expected}")


async def check_repeated(request: Request) -> None:
    """A dependency of routes: rejects repeated query parameters. Raises BadRequest.

    FastAPI calls a dependency that is not async in a thread.
    """
    single_values(request)


def single_values(request: Request) -> dict[str, str]:
    """The query parameters by name. Raises BadRequest for a repeated one."""
    values: dict[str, str] = {}
    for name, value in request.query_params.multi_items():
        if name in values:
            raise BadRequest(f"{quote(name)}: given twice; expected once")
        values[name] = value
    return values


def query_names(request: Request) -> list[str]:
    """The query parameters that the request's route declares."""
    route = request.scope.get("route")
    if not isinstance(route, APIRoute):
        return []
    return list(_query_names(route.dependant))


def _query_names(dependant: Dependant) -> Iterator[str]:
    for field in dependant.query_params:
        model = _model(field.field_info.annotation)
        yield from _names(model) if model is not None else [field.alias]
    for each in dependant.dependencies:
        yield from _query_names(each)


def explain_invalid(error: RequestValidationError, request: Request) -> str:
    """All errors in one line."""
    lines = list(_lines(error.errors(), request))
    more = [f"and {len(lines) - ERRORS_SHOWN} more"] if len(lines) > ERRORS_SHOWN else []
    return "; ".join(lines[:ERRORS_SHOWN] + more)


def _lines(errors: Sequence[Mapping[str, Any]], request: Request) -> Iterator[str]:
    for each in errors:
        source, *place = each["loc"]
        if each["type"] == "json_invalid":
            yield f"body: not JSON: {each['ctx']['error']} at character {place[0]}"
            continue
        where = [str(part) for part in place]
        if source == "body":
            where = ["body", *where]
        allowed = _allowed(source, place[:-1], request) if each["type"] == "extra_forbidden" else []
        found = each["input"]
        if source == "query" and isinstance(found, list) and len(found) == 1:
            found = found[0]  # a parameter that may be repeated
        yield error_line(".".join(where), each["type"], found, each["msg"], allowed)


def _allowed(source: str, place: Sequence[str | int], request: Request) -> list[str]:
    """The names that are allowed at that place."""
    if source == "query":
        return query_names(request)
    route = request.scope.get("route")
    field = route.body_field if isinstance(route, APIRoute) else None
    model = _model(field.field_info.annotation) if field is not None else None
    for part in place:
        if model is not None and isinstance(part, str):
            names = {each.alias or name: each.annotation for name, each in model.model_fields.items()}
            model = _model(names.get(part))
    return _names(model) if model is not None else []


def _names(model: type[BaseModel]) -> list[str]:
    return [each.alias or name for name, each in model.model_fields.items()]


def _model(annotation: Any) -> type[BaseModel] | None:
    """The model in ``list[Model]``, ``Model | None`` and the like."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for each in get_args(annotation) if (found := _model(each)) is not None), None)
