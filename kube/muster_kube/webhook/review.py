"""Requests to and responses of admission webhooks: AdmissionReview of admission.k8s.io.

All API servers since 1.16 send v1 if the webhook accepts it; v1beta1 differs only in its name. The response has the
version of the request.
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
# The API server's encoder writes the fields in the order of their declaration, so every review begins like this
_HEAD = re.compile(
    rb'\s*\{"kind":"AdmissionReview","apiVersion":"(admission\.k8s\.io/v1(?:beta1)?)","request":\{"uid":"([\w-]{1,64})"'
)


class Resource(Api, frozen=True):
    """resource: plural."""

    group: str = ""
    version: str = ""
    resource: str = ""


class AdmissionRequest(Api, frozen=True):
    """One write to be reviewed. The objects are raw JSON; null if absent."""

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
    """The fields of a request that the response repeats."""

    uid: str
    api_version: str


@dataclass(frozen=True)
class ReviewAnswer:
    """code, reason, message, details: the Status for the client if the write is rejected. warnings: shown to the client
    in any case. patch: RFC 6902 operations of a mutating webhook."""

    allowed: bool
    code: int = 403
    reason: str = "Forbidden"
    message: str = ""
    details: Mapping[str, object] | None = None
    warnings: tuple[str, ...] = ()
    patch: Sequence[Mapping[str, object]] = ()


ALLOWED = ReviewAnswer(True)


class BadReview(Exception):
    """The request is not an AdmissionReview of this version; the message says why."""


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
        raise BadReview(f"not an AdmissionReview: {error}") from error
    if review.api_version not in API_VERSIONS or review.kind != "AdmissionReview":
        found = f"{review.kind[:64]!r} of {review.api_version[:64]!r}"
        raise BadReview(f"{found}: expected AdmissionReview of {' or '.join(API_VERSIONS)}")
    return ReviewedRequest(review.request.uid, review.api_version), review.request


def read_request_head(raw: bytes | bytearray) -> ReviewedRequest | None:
    """The head of an incomplete review; None if it does not begin like a review."""
    match = _HEAD.match(raw)
    return ReviewedRequest(match[2].decode(), match[1].decode()) if match else None


def write_review(request: ReviewedRequest, answer: ReviewAnswer) -> bytes:
    response: dict[str, object] = {"uid": request.uid, "allowed": answer.allowed}
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
    return msgspec.json.encode({"apiVersion": request.api_version, "kind": "AdmissionReview", "response": response})
