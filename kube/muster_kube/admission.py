"""What the API server asks an admission webhook, and what it is answered: AdmissionReview, admission.k8s.io/v1."""

import re
from dataclasses import dataclass

import msgspec

from muster_kube.objects import Api
from muster_kube.reviews import Identity

API_VERSION = "admission.k8s.io/v1"  # all servers since 1.16
# The API server's encoder writes the fields in the order of their declaration, so this is what every review begins with
_HEAD = re.compile(
    rb'\s*\{"kind":"AdmissionReview","apiVersion":"admission\.k8s\.io/v1","request":\{"uid":"([\w-]{1,64})"'
)


class Resource(Api, frozen=True):
    """resource: plural."""

    group: str = ""
    version: str = ""
    resource: str = ""


class AdmissionRequest(Api, frozen=True):
    """One write that waits for an answer. The objects themselves are skipped while decoding."""

    uid: str
    user_info: Identity
    resource: Resource
    sub_resource: str = ""
    name: str = ""
    namespace: str = ""
    operation: str = ""


@dataclass(frozen=True)
class Answer:
    """code, reason, message: what the client that wrote gets to read; only where it is not allowed."""

    allowed: bool
    code: int = 403
    reason: str = "Forbidden"
    message: str = ""


ALLOWED = Answer(True)


class BadReview(Exception):
    """What was sent is no AdmissionReview of this version; says why."""


class _Review(Api, frozen=True):
    api_version: str
    kind: str
    request: AdmissionRequest


_decoder = msgspec.json.Decoder(_Review)


def read_review(raw: bytes | bytearray) -> AdmissionRequest:
    """Raises BadReview."""
    try:
        review = _decoder.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise BadReview(f"no AdmissionReview: {error}") from error
    if (review.api_version, review.kind) != (API_VERSION, "AdmissionReview"):
        found = f"{review.kind[:64]!r} of {review.api_version[:64]!r}"
        raise BadReview(f"{found}: expected AdmissionReview of {API_VERSION} (admissionReviewVersions: [v1])")
    return review.request


def uid_at_the_head(raw: bytes | bytearray) -> str:
    """The uid of a review of which only the beginning is there; empty where it does not begin like one."""
    match = _HEAD.match(raw)
    return match[1].decode() if match else ""


def write_review(uid: str, answer: Answer) -> bytes:
    """The answer to the request ``uid``."""
    response: dict[str, object] = {"uid": uid, "allowed": answer.allowed}
    if not answer.allowed:
        response["status"] = {
            "status": "Failure",
            "code": answer.code,
            "reason": answer.reason,
            "message": answer.message,
        }
    return msgspec.json.encode({"apiVersion": API_VERSION, "kind": "AdmissionReview", "response": response})
