"""Kueue support: a new job with Kueue's queue label is created suspended.

Kueue's own webhooks do the same for the kinds that it supports. The job is resumed (``spec.suspend: false``) by a Kueue
integration for this kind, or by a person; see docs/ipujob.md.
"""

from collections.abc import Mapping
from dataclasses import replace

from muster_operator.admission.defaults import DefaultedSpec
from muster_operator.admission.numbers import RawSpec, mapping
from muster_operator.job.kueue import QUEUE


def queue_of(metadata: Mapping[str, object]) -> str:
    """The queue named in the job's labels; empty if there is none."""
    found = mapping(metadata.get("labels")).get(QUEUE)
    return found if isinstance(found, str) else ""


def suspend_queued(found: DefaultedSpec, metadata: RawSpec) -> DefaultedSpec:
    """Suspend a new job that names a queue."""
    queue = queue_of(metadata)
    if not queue or found.spec.get("suspend") is True:
        return found
    warning = f"label {QUEUE}: the job is created suspended; queue {queue} or spec.suspend: false starts it"
    return replace(found, spec={**found.spec, "suspend": True}, warnings=(*found.warnings, warning))
