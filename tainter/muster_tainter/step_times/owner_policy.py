"""What the owner of a job wants done about a slow rank, by an annotation of its pods. Pure functions.

Whoever creates the pods writes the annotation, so it can only concern them.
"""

from collections.abc import Mapping
from enum import StrEnum

from muster_checks.base.vocabulary import shorten

ANNOTATION = "muster.dev/on-straggler"


class OnStraggler(StrEnum):
    """CONTINUE: nothing. NOTIFY: Events on the pod and its owners. MOVE: also evict the slow pod, so that it saves its
    state when it gets SIGTERM, and its owner creates it again. STOP: also suspend its job, or evict
    a pod that has none."""

    CONTINUE = "continue"
    NOTIFY = "notify"
    MOVE = "checkpoint-and-move"
    STOP = "stop"


def owner_policy(annotations: Mapping[str, str]) -> tuple[OnStraggler, str]:
    """(the policy, what is wrong with the annotation, empty if nothing is)."""
    text = annotations.get(ANNOTATION, OnStraggler.NOTIFY)
    try:
        return OnStraggler(text), ""
    except ValueError:
        allowed = ", ".join(OnStraggler)
        return OnStraggler.NOTIFY, f"annotation {ANNOTATION}: {shorten(repr(text), 60)}: expected {allowed}"
