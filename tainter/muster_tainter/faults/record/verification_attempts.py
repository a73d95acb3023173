"""Failed verifications of a node: the annotation ``muster.dev/proofs`` of its NodeHealth.

Written together with the request's deletion, so that a new leader requests neither sooner nor more often.
"""

from collections.abc import Mapping

import msgspec

from muster_kube.nodehealth import NodeHealth
from muster_tainter.faults.record.node_record import OPEN_LIMIT
from muster_tainter.policy.rules import OUR_PREFIX

ANNOTATION = OUR_PREFIX + "proofs"
_LIMIT = OPEN_LIMIT  # digests: a forgotten failure would be requested again at once


class VerificationAttempts(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, gc=False):
    """The attempts of one proof on one node.

    tries: that failed in the boot ``boot``; last_result: of the last one
    after: RFC 3339, not requested again before that
    requested: the number in the last request's id, so that ids are unique
    """

    tries: int = 0
    boot: str = ""
    after: str = ""
    requested: int = msgspec.field(default=0, name="asked")
    last_result: str = msgspec.field(default="", name="said")


_tried = msgspec.json.Decoder(dict[str, VerificationAttempts])


def read_attempts(health: NodeHealth) -> dict[str, VerificationAttempts]:
    """By digest; empty if the annotation is invalid (then the proof is requested at once)."""
    text = health.metadata.annotations.get(ANNOTATION)
    if not text:
        return {}
    try:
        return _tried.decode(text)
    except (msgspec.MsgspecError, UnicodeEncodeError):
        return {}


def encode_attempts(tried: Mapping[str, VerificationAttempts]) -> str:
    """The annotation's text; empty if there are no attempts."""
    return msgspec.json.encode(tried).decode() if tried else ""


def limit_attempts(tried: dict[str, VerificationAttempts]) -> dict[str, VerificationAttempts]:
    """The latest ones: the annotation's size is limited."""
    if len(tried) <= _LIMIT:
        return tried
    return dict(sorted(tried.items(), key=lambda item: item[1].requested, reverse=True)[:_LIMIT])
