"""The API server for whoever leads: asked once more, as the body of a write goes out, whether this process still does.

Between the question before a write and its last byte lie turns of the event loop. Who is frozen there (a stopped
process, a suspended machine) wakes up after its successor has begun, and would write on Nodes that the successor has
left as they were: no 409 stops that. No server carries out a request whose body has not come.
"""

from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx2

from muster_kube.api.client import KubeClient
from muster_kube.api.config import ClusterConfig
from muster_kube.api.errors import ApiError

_READS = ("GET", "HEAD")


class NotLeading(ApiError):
    """This process stopped being the leader between a decision and its write, which was not carried out."""

    def __init__(self, path: str) -> None:
        super().__init__(0, "NotLeading", "left to the leader", path)


class _FencedBody(httpx2.AsyncByteStream):
    """``check`` raises at the last moment."""

    def __init__(self, content: bytes, check: Callable[[], None]) -> None:
        self._content = content
        self._check = check

    async def __aiter__(self) -> AsyncIterator[bytes]:
        self._check()
        yield self._content


class LeaderClient(KubeClient):
    """A client whose writes raise NotLeading once ``may_write`` says no. Whoever reads only need not lead."""

    def __init__(self, config: ClusterConfig, *, may_write: Callable[[], bool], **settings: Any) -> None:
        super().__init__(config, **settings)
        self._may_write = may_write

    def _request(
        self, method: str, path: str, params: Any, content: bytes, content_type: str, header: str | None
    ) -> httpx2.Request:
        request = super()._request(method, path, params, content, content_type, header)
        if method in _READS:
            return request

        def check() -> None:
            if not self._may_write():
                raise NotLeading(path)

        if content:
            request.stream = _FencedBody(content, check)
        else:
            check()
        return request
