"""An API client for the leader. It checks leadership again while it sends the body of a write.

Several turns of the event loop lie between the check before a write and its last byte. A process that is frozen in
between (stopped, or on a suspended machine) continues after its successor has started, and could write Nodes that the
successor has not changed: no 409 prevents that. A server does not execute a request whose body is incomplete.
"""

from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx2

from muster_kube.api.client import KubeClient
from muster_kube.api.config import ClusterConfig
from muster_kube.api.errors import ApiError

_READS = ("GET", "HEAD")


class NotLeading(ApiError):
    """This process lost leadership between a decision and its write. The write was not executed."""

    def __init__(self, path: str) -> None:
        super().__init__(0, "NotLeading", "not written: this replica is no longer the leader", path)


class _FencedBody(httpx2.AsyncByteStream):
    """Calls ``check``, which may raise, immediately before the body is sent."""

    def __init__(self, content: bytes, check: Callable[[], None]) -> None:
        self._content = content
        self._check = check

    async def __aiter__(self) -> AsyncIterator[bytes]:
        self._check()
        yield self._content


class LeaderClient(KubeClient):
    """A client whose writes raise NotLeading once ``may_write`` returns False. Reads do not need leadership."""

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
