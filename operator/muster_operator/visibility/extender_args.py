"""Reads the requests of kube-scheduler's extender interface.

Anyone who reaches the port may send one, and the process also leads and reviews admissions: so what is not used is
never built as objects, which would take many times its bytes, and the bodies under way share a limit.
"""

from typing import Annotated, TypeVar

import msgspec
from fastapi import HTTPException, Request
from msgspec import Meta, Raw, Struct, field
from starlette.requests import ClientDisconnect

from muster_kube.api.objects import OwnerReference
from muster_kube.http.bad_request import BadRequest
from muster_operator.job.ipu_pod import ANNOTATION, is_of_a_job

BODY_LIMIT = 8 << 20  # bytes: 15,000 names of 253 characters, and a pod (1.5 MiB in etcd)
HELD_LIMIT = 2 * BODY_LIMIT  # bytes of all bodies under way: a scheduler waits for each answer
OWNERS_LIMIT = 64 << 10  # bytes of a pod's ownerReferences: hundreds
NODES_LIMIT = 15_000  # three times what Kubernetes supports in one cluster

NodeName = Annotated[str, Meta(min_length=1, max_length=253)]
T = TypeVar("T")


class Annotations(Struct, frozen=True):
    ipus: str | None = field(name=ANNOTATION, default=None)


class PodMetadata(Struct, frozen=True):
    """owners: the JSON of ownerReferences; empty: absent."""

    uid: Annotated[str, Meta(max_length=253)] = ""
    annotations: Annotations | None = None
    owners: Raw = field(name="ownerReferences", default_factory=Raw)


class Pod(Struct, frozen=True):
    metadata: PodMetadata


class ExtenderArgs(Struct, frozen=True):
    """The request of both verbs; other fields are ignored. node_names: candidates, which kube-scheduler sends with
    ``nodeCacheCapable: true``."""

    pod: Pod = field(name="Pod")
    node_names: Annotated[list[NodeName], Meta(max_length=NODES_LIMIT)] = field(name="NodeNames")


class _Received(Struct, frozen=True):
    """Schedulers before 1.18 write the names in lower case. Empty names: absent; msgspec has no ``Raw | None``."""

    pod: Pod | None = field(name="Pod", default=None)
    old_pod: Pod | None = field(name="pod", default=None)
    names: Raw = field(name="NodeNames", default_factory=Raw)
    old_names: Raw = field(name="nodenames", default_factory=Raw)


_received = msgspec.json.Decoder(_Received)
_owners = msgspec.json.Decoder(tuple[OwnerReference, ...] | None)
_names = msgspec.json.Decoder(list[NodeName])


class ArgsReader:
    """Of all requests to one service."""

    def __init__(self) -> None:
        self._held = 0

    async def read(self, request: Request) -> ExtenderArgs:
        """Raises BadRequest, and HTTPException (503) if other requests have the bytes."""
        body = bytearray()
        try:
            async for chunk in request.stream():
                if self._held + len(chunk) > HELD_LIMIT:
                    raise HTTPException(503, f"concurrent requests already have {HELD_LIMIT} bytes, which is the limit")
                self._held += len(chunk)
                body += chunk
            return decode_args(body)
        except ClientDisconnect:
            raise BadRequest("body: incomplete") from None
        finally:
            self._held -= len(body)


def decode_args(body: bytes | bytearray) -> ExtenderArgs:
    """Raises BadRequest."""
    received = _decode(_received, body, "body")
    pod, raw = received.pod or received.old_pod, bytes(received.names) or bytes(received.old_names)
    if pod is None:
        raise BadRequest("body: Pod: missing; expected the pod that is scheduled")
    if not raw:
        raise BadRequest("body: NodeNames: missing; expected names of nodes (nodeCacheCapable: true)")
    if raw.count(b",") >= NODES_LIMIT:  # before a million strings are built; no node's name has a comma
        raise BadRequest(f"body: NodeNames: expected at most {NODES_LIMIT} names")
    if len(bytes(pod.metadata.owners)) > OWNERS_LIMIT:
        raise BadRequest(f"body: Pod.metadata.ownerReferences: expected at most {OWNERS_LIMIT} bytes")
    return ExtenderArgs(pod, _decode(_names, raw, "body: NodeNames"))


def annotation_of(pod: Pod) -> str | None:
    """None: the pod does not ask, or it is an IPUJob's, which has its IPUs by the job. Raises BadRequest."""
    annotations, owners = pod.metadata.annotations, bytes(pod.metadata.owners)
    if annotations is None or annotations.ipus is None:
        return None
    if not owners:
        return annotations.ipus
    found = _decode(_owners, owners, "body: Pod.metadata.ownerReferences") or ()
    return None if is_of_a_job(found) else annotations.ipus


def _decode(decoder: "msgspec.json.Decoder[T]", raw: bytes | bytearray, place: str) -> T:
    try:
        return decoder.decode(raw)
    except msgspec.ValidationError as error:
        raise BadRequest(f"{place}: {error}") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadRequest(f"{place}: not JSON: {error}") from error
