"""What the API server's audit log says was written: each write with what was asked and what came of it.

The log is the API server's own (``audit.k8s.io/v1``, one JSON event a line); nothing here comes from Muster. Writes are
put in the order of the resourceVersions that they made, which are etcd's revisions: one count for all objects.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

AUDIT_POLICY = """\
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived, ResponseStarted]
rules:
- level: None
  verbs: [get, list, watch]
- level: RequestResponse
  resources:
  - {group: "", resources: [nodes, nodes/status]}
  - {group: muster.dev, resources: [nodehealths, nodehealths/status]}
- level: Metadata
"""

Object = dict[str, Any]


class _User(msgspec.Struct, frozen=True):
    username: str = ""


class _Reference(msgspec.Struct, frozen=True):
    resource: str = ""
    subresource: str = ""
    namespace: str = ""
    name: str = ""


class _Answer(msgspec.Struct, frozen=True):
    code: int = 0


class _Event(msgspec.Struct, rename="camel", frozen=True):
    verb: str
    stage_timestamp: str
    user: _User = _User()
    object_ref: _Reference = _Reference()
    response_status: _Answer = _Answer()
    request_object: Object | None = None
    response_object: Object | None = None


@dataclass(frozen=True)
class Write:
    """at: when it was answered, RFC 3339 in UTC with microseconds (compare as text). version: the resourceVersion of
    what came of it, 0 where the log does not hold it. based_on: the resourceVersion that the request names, 0: none."""

    at: str
    user: str
    verb: str
    resource: str
    namespace: str
    name: str
    version: int = 0
    based_on: int = 0
    result: Object | None = None


def read_writes(log: Path, since: int = 0) -> tuple[list[Write], int]:
    """The writes that succeeded, in the log's order, from this offset on; and the offset behind them."""
    with log.open("rb") as opened:
        opened.seek(since)
        raw = opened.read()
    whole = raw[: raw.rfind(b"\n") + 1]
    return list(_decoded(whole.splitlines())), since + len(whole)


def _decoded(lines: Iterable[bytes]) -> Iterator[Write]:
    decoder = msgspec.json.Decoder(_Event)
    for line in lines:
        event = decoder.decode(line)
        reference = event.object_ref
        if not 200 <= event.response_status.code < 300 or not reference.resource:
            continue
        result = event.response_object if event.verb != "delete" else None
        yield Write(
            at=event.stage_timestamp,
            user=event.user.username,
            verb=event.verb,
            resource=f"{reference.resource}/{reference.subresource}".rstrip("/"),
            namespace=reference.namespace,
            name=reference.name or str(_metadata(result).get("name", "")),
            version=_number(_metadata(result)),
            based_on=_number(_metadata(event.request_object)),
            result=without_bulk(result),
        )


def without_bulk(body: Object | None) -> Object | None:
    """What nothing is judged by, and most of a Node's bytes: who manages which field, and a Node's status."""
    if body is None:
        return None
    kept = {key: value for key, value in body.items() if key != "status" or "checks" in (value or ())}
    return kept | {"metadata": {key: value for key, value in _metadata(body).items() if key != "managedFields"}}


def in_order(writes: Iterable[Write], resources: Sequence[str]) -> list[Write]:
    """Those of these resources whose result is known, by the version that they made."""
    found = [write for write in writes if write.resource in resources and write.version]
    return sorted(found, key=lambda write: write.version)


def _metadata(body: Object | None) -> Object:
    found = (body or {}).get("metadata")
    return found if isinstance(found, dict) else {}


def _number(metadata: Object) -> int:
    text = metadata.get("resourceVersion")
    return int(text) if isinstance(text, str) and text.isdigit() else 0
