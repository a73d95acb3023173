"""The FastAPI application of a component: its error responses, ``/openapi.json``, and offline ``/docs``.

Import this only to serve HTTP: it loads FastAPI.
"""

import asyncio
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
from fastapi import FastAPI, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.routing import compile_path
from starlette.types import Message, Receive, Scope, Send

from muster_kube.http.bad_request import FIELDS_LIMIT, BadRequest, explain_invalid
from muster_kube.http.responses import SCHEMAS, described, refuse_in_text

Refuse = Callable[[int, str, Mapping[str, str]], Response]

_NO_TELEMETRY: Any = {"tracing": False, "metrics": False, "logs": False, "auto_configure": False}


class Service(FastAPI):
    """title, version, description: of the OpenAPI document.

    refuse:   creates the response to an invalid request from status, message and headers
    structs:  types (msgspec, dataclasses, TypedDicts) that routes name in their ``responses`` (responses.struct)
    body_limit, body_s: limits for each request body, in bytes (else 413) and in seconds after the first line (else 408)
    responses: of every route, in addition to its own
    """

    def __init__(
        self,
        title: str,
        version: str,
        *,
        description: str = "",
        refuse: Refuse = refuse_in_text,
        structs: Sequence[type] = (),
        body_limit: int | None = None,
        body_s: float | None = None,
        responses: Mapping[int | str, dict[str, Any]] | None = None,
    ) -> None:
        super().__init__(
            title=title,
            version=version or "unknown",
            description=description,
            openapi_url=None,
            docs_url=None,
            redoc_url=None,
            telemetry=_NO_TELEMETRY,
            strict_content_type=False,
            responses=dict(responses or {}),
        )
        self._refuse = refuse
        self.structs = list(structs)
        self._body_limit = body_limit
        self._body_s = body_s
        self._served: dict[str, list[str]] = {}
        self._document_sent = b""
        self.add_exception_handler(StarletteHTTPException, self.http_error)
        self.add_exception_handler(RequestValidationError, self._invalid)
        self.add_exception_handler(BadRequest, self._bad_request)
        self.get("/openapi.json", include_in_schema=False)(self._document)
        self.get("/docs", include_in_schema=False)(self._docs)
        self.get("/docs/{name}", include_in_schema=False)(self._asset)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            if scope["query_string"].count(b"&") >= FIELDS_LIMIT:
                answer = self._refuse(400, f"more than {FIELDS_LIMIT} parameters; expected each once", {})
                await answer(scope, receive, send)
                return
            # HEAD is handled as GET; the server omits the body. Bodies are parsed as JSON regardless of their content
            # type, because curl -d always sends the type of a form
            method = "GET" if scope["method"] == "HEAD" else scope["method"]
            headers = [(name, value) for name, value in scope["headers"] if name != b"content-type"]
            scope = {**scope, "method": method, "headers": headers}
            if self._body_limit is not None or self._body_s is not None:
                receive = _bounded(receive, self._body_limit or sys.maxsize, self._body_s)
        await super().__call__(scope, receive, send)

    def openapi(self) -> dict[str, Any]:
        """Not kept as an object, which takes several times the memory of its JSON."""
        self.openapi_schema = None
        document = super().openapi()
        self.openapi_schema = None
        for operations in document["paths"].values():
            for operation in operations.values():
                if operation["responses"].pop("422", None) is not None:
                    operation["responses"].setdefault("400", described("what is wrong, and what is allowed"))
        schemas: dict[str, Any] = document.setdefault("components", {}).setdefault("schemas", {})
        for name in ("HTTPValidationError", "ValidationError"):
            schemas.pop(name, None)
        schemas.update(msgspec.json.schema_components(self.structs, ref_template=SCHEMAS)[1])
        return document

    def served(self) -> Mapping[str, Sequence[str]]:
        """Methods by path. Computed at the first use, when all routes have been added."""
        if not self._served:
            paths = self.openapi()["paths"].items()
            self._served = {path: [method.upper() for method in operations] for path, operations in paths}
        return self._served

    async def _document(self) -> Response:
        """Made once, because any client may request it, and making it takes longer than most checks."""
        if not self._document_sent:
            self._document_sent = msgspec.json.encode(self.openapi())
        return Response(self._document_sent, media_type="application/json")

    async def _docs(self) -> Response:
        from muster_kube.http.offline_docs import docs_page

        return docs_page(self.title)

    async def _asset(self, name: str) -> Response:
        from muster_kube.http.offline_docs import ASSETS, docs_asset

        answer = docs_asset(name)
        if answer is None:
            raise HTTPException(404, f"{name[:80]!r}: expected {', '.join(ASSETS)}")
        return answer

    async def http_error(self, request: Request, error: Exception) -> Response:
        """The response to requests that Starlette and FastAPI reject."""
        assert isinstance(error, StarletteHTTPException)  # noqa: S101 - registered for it
        headers = dict(error.headers or {})
        if error.status_code == 405:  # Starlette lists the methods of one route only
            path = request.url.path
            methods = [self.served()[each] for each in self.served() if compile_path(each)[0].match(path)]
            headers["Allow"] = ", ".join(method for each in methods for method in each) or headers.get("Allow", "")
        return self._refuse(error.status_code, error.detail, headers)

    async def _invalid(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)  # noqa: S101 - registered for it
        return self._refuse(400, explain_invalid(error, request), {})

    async def _bad_request(self, _: Request, error: Exception) -> Response:
        return self._refuse(400, str(error), {})


def _bounded(receive: Receive, limit: int, seconds: float | None) -> Receive:
    """``receive`` for a body of at most ``limit`` bytes that must be complete after ``seconds`` (None: no limit).
    Raises HTTPException (413, 408). FastAPI's own max_body_size has a different error message."""
    ends = None if seconds is None else asyncio.get_running_loop().time() + seconds
    left = limit
    whole = False

    async def bounded() -> Message:
        nonlocal left, whole
        if whole:
            return await receive()
        try:
            async with asyncio.timeout_at(ends):
                message = await receive()
        except TimeoutError:
            raise HTTPException(408, f"body: not received within {seconds:g} s") from None
        left -= len(message.get("body", b""))
        if left < 0:
            raise HTTPException(413, f"body: more than {limit} bytes")
        whole = message["type"] != "http.request" or not message.get("more_body", False)
        return message

    return bounded
