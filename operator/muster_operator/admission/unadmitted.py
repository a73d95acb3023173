"""Jobs that no webhook has seen, because it was down or is not installed: the operator applies the same defaults and
validation."""

from typing import Any

import msgspec
from msgspec import UnsetType

from muster_operator.admission.defaults import apply_defaults
from muster_operator.admission.validation import SpecLimits, validate
from muster_operator.job.types import IPUJob, IPUJobSpec


class UnadmittedReview:
    def __init__(self, limits: SpecLimits) -> None:
        self._limits = limits

    def complete(self, job: IPUJob) -> IPUJob:
        """The job with the defaults of the mutating webhook; ``job`` itself if it has them already."""
        spec = job.spec
        left_out = (spec.job_instances, spec.ipus_per_job_instance, spec.workers_per_job_instance)
        older = (spec.worker_per_job_instance,)
        if not any(isinstance(each, UnsetType) for each in left_out) and all(isinstance(e, UnsetType) for e in older):
            return job
        try:
            meant = msgspec.convert(apply_defaults(_as_json(spec)).spec, type=IPUJobSpec)
        except msgspec.ValidationError:
            return job  # validation rejects it; see wrong()
        return msgspec.structs.replace(job, spec=meant)

    def wrong(self, job: IPUJob) -> tuple[str, ...]:
        """Errors of the spec, for people."""
        return tuple(dict.fromkeys(map(str, validate(job, self._limits))))


def _as_json(spec: IPUJobSpec) -> dict[str, Any]:
    """JSON as the webhooks receive it, with lists where to_builtins leaves tuples."""
    found: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(spec))
    return found
