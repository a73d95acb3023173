"""``/docs``: Swagger UI for the service's OpenAPI document. Its files are in the package fastapi-offline, because a
cluster may have no Internet access. Its links are relative, so that it works behind ``kubectl proxy``.

FastAPIOffline itself is not used: its links are absolute, and it serves ReDoc's files too.
"""

import base64
import hashlib
import re
from functools import lru_cache
from html import escape
from importlib import resources
from pathlib import Path

from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.responses import FileResponse, HTMLResponse, Response

ASSETS = {"swagger-ui-bundle.js": "text/javascript", "swagger-ui.css": "text/css", "favicon.png": "image/png"}
_SCRIPT = re.compile(rb"<script>(.*?)</script>", re.S)


@lru_cache(maxsize=4)
def docs_page(title: str) -> Response:
    """The page, made once.

    It runs only Swagger's script and the one that starts it, and connects only to this service."""
    page = get_swagger_ui_html(
        openapi_url="openapi.json",
        title=escape(title),
        swagger_js_url="docs/swagger-ui-bundle.js",
        swagger_css_url="docs/swagger-ui.css",
        swagger_favicon_url="docs/favicon.png",
        swagger_ui_parameters={"validatorUrl": None},
    )
    body = bytes(page.body)
    digests = [base64.b64encode(hashlib.sha256(script).digest()).decode() for script in _SCRIPT.findall(body)]
    policy = (
        "default-src 'none'",
        " ".join(["script-src 'self'", *(f"'sha256-{each}'" for each in digests)]),
        "style-src 'self' 'unsafe-inline'",  # Swagger sets inline styles
        "img-src 'self' data:",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
    headers = {
        "Content-Security-Policy": "; ".join(policy),
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
    }
    return HTMLResponse(body, headers=headers)


def docs_asset(name: str) -> Response | None:
    """A file of the page, or None if the page has no such file."""
    if name not in ASSETS:
        return None
    folder = Path(str(resources.files("fastapi_offline"))) / "static"
    headers = {"X-Content-Type-Options": "nosniff", "Cache-Control": "max-age=3600"}
    return FileResponse(folder / name, headers=headers, media_type=ASSETS[name])
