"""How often a node was asked to prove itself well and did not: the annotation ``muster.dev/proofs`` of its NodeHealth.

Written together with the request's deletion, so that a new leader asks neither sooner nor more often.
"""

from collections.abc import Mapping

import msgspec

from muster_kube.nodehealth import NodeHealth
from muster_tainter.faults.node_record import OPEN_LIMIT
from muster_tainter.policy.rules import OUR_PREFIX

ANNOTATION = OUR_PREFIX + "proofs"
_LIMIT = OPEN_LIMIT  # digests: of one that is forgotten nobody would know that it failed, and ask again at once


class VerificationAttempts(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, gc=False):
    """What came of one proof on one node.

    tries: in the boot ``boot``, that were not passed; said: how the last one ended
    after: RFC 3339, it is not asked for before that
    asked: the number in the last request's id: no other one gets the same
    """

    tries: int = 0
    boot: str = ""
    after: str = ""
    asked: int = 0
    said: str = ""


_tried = msgspec.json.Decoder(dict[str, VerificationAttempts])


def read_attempts(health: NodeHealth) -> dict[str, VerificationAttempts]:
    """By digest; nothing where the annotation makes no sense (then it is asked at once, that is all)."""
    text = health.metadata.annotations.get(ANNOTATION)
    if not text:
        return {}
    try:
        return _tried.decode(text)
    except (msgspec.MsgspecError, UnicodeEncodeError):
        return {}


def encode_attempts(tried: Mapping[str, VerificationAttempts]) -> str:
    """The annotation's text; empty when there is nothing to remember."""
    return msgspec.json.encode(tried).decode() if tried else ""


def limit_attempts(tried: dict[str, VerificationAttempts]) -> dict[str, VerificationAttempts]:
    """The latest ones: an annotation has its limit."""
    if len(tried) <= _LIMIT:
        return tried
    return dict(sorted(tried.items(), key=lambda item: item[1].asked, reverse=True)[:_LIMIT])
