"""Reads the API server's audit log: the requests between two marks, and who sent them.

The server writes one JSON event per line (audit.k8s.io/v1) before it continues (blocking mode). A watch counts when it
starts, because its completion is logged only when it closes.
"""

import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

POLICY = """\
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: Metadata
"""

READS = frozenset({"get", "list", "watch"})


class _User(msgspec.Struct, frozen=True):
    username: str = ""


class _Reference(msgspec.Struct, rename="camel", frozen=True):
    resource: str = ""
    subresource: str = ""
    namespace: str = ""
    name: str = ""


class _Answer(msgspec.Struct, frozen=True):
    code: int = 0


class _Event(msgspec.Struct, rename="camel", frozen=True):
    stage: str
    verb: str
    request_uri: str = msgspec.field(name="requestURI", default="")
    user: _User = _User()
    user_agent: str = ""
    object_ref: _Reference = _Reference()
    response_status: _Answer = _Answer()


@dataclass(frozen=True)
class AuditedRequest:
    """resource: plural, with a subresource, such as ``nodes/status``; empty for paths such as /version."""

    user: str
    verb: str
    resource: str
    namespace: str
    name: str
    status: int
    uri: str
    user_agent: str

    @property
    def writes(self) -> bool:
        return self.verb not in READS


class AuditLog:
    """The log of one API server. ``ping`` sends a request with a given user agent, which marks a place in the log."""

    def __init__(self, path: Path, ping: Callable[[str], None]) -> None:
        self._path = path
        self._ping = ping

    def mark(self, *, timeout_s: float = 60.0) -> int:
        """The current offset in the log: requests that were answered before this call are before it.

        Sends a request and waits for its line, so that all earlier ones have been written. Raises TimeoutError if the
        line does not appear (audit disabled, disk full).
        """
        sign = f"muster-mark/{uuid.uuid4().hex}"
        start = self._path.stat().st_size
        self._ping(sign)
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            with self._path.open("rb") as log:
                log.seek(start)
                data = log.read()
            at = data.find(sign.encode())
            end = data.find(b"\n", at)
            if at >= 0 and end >= 0:
                return start + end + 1
            time.sleep(0.01)
        raise TimeoutError(f"{self._path}: the mark did not appear within {timeout_s:.0f} s")

    def requests(self, since: int, until: int | None = None) -> Iterator[AuditedRequest]:
        """The requests that were answered between two marks. ``until`` None: sets a mark now."""
        end = self.mark() if until is None else until
        decoder = msgspec.json.Decoder(_Event)
        with self._path.open("rb") as log:
            log.seek(since)
            while log.tell() < end:
                event = decoder.decode(log.readline())
                started = event.stage == "ResponseStarted"
                if (event.verb == "watch") != started or event.user_agent.startswith("muster-mark/"):
                    continue
                reference = event.object_ref
                yield AuditedRequest(
                    user=event.user.username,
                    verb=event.verb,
                    resource=f"{reference.resource}/{reference.subresource}".rstrip("/"),
                    namespace=reference.namespace,
                    name=reference.name,
                    status=event.response_status.code,
                    uri=event.request_uri,
                    user_agent=event.user_agent,
                )

    def count(
        self,
        since: int,
        until: int | None = None,
        *,
        keep: Callable[[AuditedRequest], bool] | None = None,
    ) -> Counter[tuple[str, str, str]]:
        """The number of requests for each (user, verb, resource) between two marks.

        A watch that was rejected before it started (403, 410) has no ``ResponseStarted`` and does not count.
        """
        return Counter(
            (each.user, each.verb, each.resource) for each in self.requests(since, until) if keep is None or keep(each)
        )
