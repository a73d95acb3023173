"""Jobs that another one decides when to start: Kueue's label on a new job makes it suspended from the start.

So do Kueue's own webhooks with the kinds that it knows; nobody has to be faster than the operator then. Who resumes the
job (``spec.suspend: false``) is an integration of Kueue's for this kind, or a person; see docs/ipujob.md.
"""

from collections.abc import Mapping
from dataclasses import replace

from muster_operator.admission.defaults import DefaultedSpec
from muster_operator.admission.numbers import RawSpec, mapping

QUEUE = "kueue.x-k8s.io/queue-name"


def queue_of(metadata: Mapping[str, object]) -> str:
    """The queue that a job names in its labels; empty: none."""
    found = mapping(metadata.get("labels")).get(QUEUE)
    return found if isinstance(found, str) else ""


def suspend_queued(found: DefaultedSpec, metadata: RawSpec) -> DefaultedSpec:
    """Of a job that is created."""
    queue = queue_of(metadata)
    if not queue or found.spec.get("suspend") is True:
        return found
    warning = f"label {QUEUE}: created suspended; queue {queue} starts it, or spec.suspend: false does"
    return replace(found, spec={**found.spec, "suspend": True}, warnings=(*found.warnings, warning))
