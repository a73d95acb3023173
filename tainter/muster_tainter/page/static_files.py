"""The pages' files, and the headers under which they are served.

A page loads nothing from other origins and runs only its own scripts, enforced by a Content-Security-Policy. URLs are
relative, so pages work behind ``kubectl proxy`` and any ingress path.
"""

import hashlib
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from fastapi import Request
from fastapi.responses import Response

POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
    )
)
SAFE = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
TYPES = {"html": "text/html", "js": "text/javascript", "css": "text/css", "svg": "image/svg+xml"}
_SCRIPTS = (
    "page", "model", "live", "layout", "map", "glyphs", "lists", "panel", "devices", "clearing", "words", "goodput",
)  # fmt: skip
FILES = frozenset({"page.css", "goodput.css", "icon.svg", *(f"{name}.js" for name in _SCRIPTS)})
NEVER_STORED = {"Cache-Control": "no-store"}
TEXT_SCHEMA = {"schema": {"type": "string"}}


@dataclass(frozen=True)
class _File:
    content: bytes
    type: str
    tag: str


@cache
def _file(name: str) -> _File:
    content = resources.files("muster_tainter.page").joinpath("files", name).read_bytes()
    tag = hashlib.sha256(content).hexdigest()[:16]
    return _File(content, f"{TYPES[name.rpartition('.')[2]]}; charset=utf-8", f'"{tag}"')


def answer_file(request: Request, name: str) -> Response:
    """304 if the browser has it already."""
    file = _file(name)
    headers = {**SAFE, "Cache-Control": "no-cache", "ETag": file.tag}  # a rollout changes the files
    if request.headers.get("if-none-match") == file.tag:
        return Response(status_code=304, headers=headers)
    return Response(file.content, headers=headers, media_type=file.type)


def text_content(kind: str) -> dict[str, Any]:
    """Of a route's response, by media type."""
    return {kind: TEXT_SCHEMA}
