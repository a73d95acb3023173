"""What the API server asks an admission webhook, and what it is answered: AdmissionReview of admission.k8s.io.

v1 is what all servers since 1.16 send who are offered it; v1beta1 differs in nothing but its name. The answer has the
version of the question.
"""

import base64
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from muster_kube.api.objects import Api
from muster_kube.api.reviews import Identity

VERSIONS = ("v1", "v1beta1")
API_VERSIONS = tuple(f"admission.k8s.io/{version}" for version in VERSIONS)
# The API server's encoder writes the fields in the order of their declaration, so this is what every review begins with
_HEAD = re.compile(
    rb'\s*\{"kind":"AdmissionReview","apiVersion":"(admission\.k8s\.io/v1(?:beta1)?)","request":\{"uid":"([\w-]{1,64})"'
)


class Resource(Api, frozen=True):
    """resource: plural."""

    group: str = ""
    version: str = ""
    resource: str = ""


class AdmissionRequest(Api, frozen=True):
    """One write that waits for an answer. The objects are kept as they came: JSON, null where there is none."""

    uid: str
    user_info: Identity
    resource: Resource
    sub_resource: str = ""
    name: str = ""
    namespace: str = ""
    operation: str = ""
    object: msgspec.Raw = msgspec.Raw(b"null")
    old_object: msgspec.Raw = msgspec.Raw(b"null")


@dataclass(frozen=True)
class ReviewedRequest:
    """What an answer has to repeat of its question."""

    uid: str
    api_version: str


@dataclass(frozen=True)
class ReviewAnswer:
    """code, reason, message, details (of the API's Status): what the client that wrote gets to read; only where it is
    not allowed. warnings: it gets to read them anyway. patch: operations of RFC 6902, of a mutating webhook."""

    allowed: bool
    code: int = 403
    reason: str = "Forbidden"
    message: str = ""
    details: Mapping[str, object] | None = None
    warnings: tuple[str, ...] = ()
    patch: Sequence[Mapping[str, object]] = ()


ALLOWED = ReviewAnswer(True)


class BadReview(Exception):
    """What was sent is no AdmissionReview of this version; says why."""


class _Review(Api, frozen=True):
    api_version: str
    kind: str
    request: AdmissionRequest


_decoder = msgspec.json.Decoder(_Review)


def read_review(raw: bytes | bytearray) -> tuple[ReviewedRequest, AdmissionRequest]:
    """Raises BadReview."""
    try:
        review = _decoder.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BadReview(f"no AdmissionReview: {error}") from error
    if review.api_version not in API_VERSIONS or review.kind != "AdmissionReview":
        found = f"{review.kind[:64]!r} of {review.api_version[:64]!r}"
        raise BadReview(f"{found}: expected AdmissionReview of {' or '.join(API_VERSIONS)}")
    return ReviewedRequest(review.request.uid, review.api_version), review.request


def read_request_head(raw: bytes | bytearray) -> ReviewedRequest | None:
    """Of a review of which only the beginning is there; None where it does not begin like one."""
    match = _HEAD.match(raw)
    return ReviewedRequest(match[2].decode(), match[1].decode()) if match else None


def write_review(asked: ReviewedRequest, answer: ReviewAnswer) -> bytes:
    response: dict[str, object] = {"uid": asked.uid, "allowed": answer.allowed}
    if answer.warnings:
        response["warnings"] = answer.warnings
    if answer.patch and answer.allowed:
        response["patchType"] = "JSONPatch"
        response["patch"] = base64.b64encode(msgspec.json.encode(answer.patch)).decode()
    if not answer.allowed:
        status: dict[str, object] = {
            "status": "Failure",
            "code": answer.code,
            "reason": answer.reason,
            "message": answer.message,
        }
        response["status"] = status | ({} if answer.details is None else {"details": answer.details})
    return msgspec.json.encode({"apiVersion": asked.api_version, "kind": "AdmissionReview", "response": response})
