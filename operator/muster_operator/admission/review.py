"""Answers AdmissionReviews of IPUJobs, from their content and from what the submitting user may do."""

from collections.abc import Callable, Collection, Sequence
from typing import Any

import msgspec

from muster_kube.webhook.review import ALLOWED, AdmissionRequest, BadReview, ReviewAnswer
from muster_operator.admission.defaults import apply_defaults
from muster_operator.admission.errors import SpecError
from muster_operator.admission.json_patch import make_patch
from muster_operator.admission.kueue import suspend_queued
from muster_operator.admission.numbers import mapping
from muster_operator.admission.submitter import MayCreatePods, refuse_submitter, what_runs
from muster_operator.admission.validation import SpecLimits, needs_review, review_spec
from muster_operator.job.types import GROUP, KIND, PLURAL

CountReview = Callable[[str, str], None]
_Object = dict[str, Any]
_decoder = msgspec.json.Decoder(_Object)
_decoder_or_null = msgspec.json.Decoder(_Object | None)
OPERATIONS = ("CREATE", "UPDATE")
# bytes of a job as JSON: more than etcd stores, escapes aside. The review of an update contains two jobs and must be
# readable, otherwise a job could not lose its finalizer
JOB_LIMIT = 3 << 20


class Reviewers:
    """scope: only jobs of these namespaces are reviewed; empty: all. count: called with the webhook (mutate, validate)
    and its answer (allowed, refused). may_create_pods: called with a user and a namespace. Raises BadReview if the
    object is not an IPUJob."""

    def __init__(
        self, limits: SpecLimits, scope: Collection[str], count: CountReview, may_create_pods: MayCreatePods
    ) -> None:
        self._limits = limits
        self._scope = frozenset(scope)
        self._counter = count
        self._may_create_pods = may_create_pods

    async def mutate(self, request: AdmissionRequest) -> ReviewAnswer:
        if _is_large(request) and request.operation == "CREATE":
            return self._count("mutate", refuse_too_large())  # not even decoded
        job, former = _objects(request)
        spec = job.get("spec")
        if not self._judges(request) or not isinstance(spec, dict):
            return self._count("mutate", ALLOWED)  # the schema reports a missing spec
        found = apply_defaults(spec, None if former is None else mapping(former.get("spec")))
        if found.errors and not mapping(job.get("metadata")).get("deletionTimestamp"):
            return self._count("mutate", refuse_job(job, found.errors))
        if former is None:
            found = suspend_queued(found, mapping(job.get("metadata")))
        operations = make_patch(spec, found.spec, "/spec")
        return self._count("mutate", ReviewAnswer(True, patch=operations, warnings=found.warnings))

    async def validate(self, request: AdmissionRequest) -> ReviewAnswer:
        if _is_large(request) and request.operation == "CREATE":
            return self._count("validate", refuse_too_large())
        job, former = _objects(request)
        if not self._judges(request) or not needs_review(job, former):
            return self._count("validate", ALLOWED)
        if _is_large(request):
            return self._count("validate", refuse_too_large())
        found = review_spec(job, former, self._limits)
        if found.errors:
            return self._count("validate", refuse_job(job, found.errors))
        before = None if former is None else what_runs(mapping(former.get("spec")))
        if what_runs(mapping(job.get("spec"))) != before and (
            refusal := await refuse_submitter(request, self._may_create_pods)
        ):
            return self._count("validate", refusal)
        return self._count("validate", ReviewAnswer(True, warnings=found.warnings))

    def _judges(self, request: AdmissionRequest) -> bool:
        inside = not self._scope or request.namespace in self._scope
        return inside and not request.sub_resource and request.operation in OPERATIONS

    def _count(self, webhook: str, answer: ReviewAnswer) -> ReviewAnswer:
        self._counter(webhook, "allowed" if answer.allowed else "refused")
        return answer


def _is_large(request: AdmissionRequest) -> bool:
    return memoryview(request.object).nbytes > JOB_LIMIT


def refuse_too_large() -> ReviewAnswer:
    return ReviewAnswer(
        False, 413, "RequestEntityTooLarge", f"the job as JSON is too large: expected at most {JOB_LIMIT} bytes"
    )


def _objects(request: AdmissionRequest) -> tuple[_Object, _Object | None]:
    """The requested object, and on an update the stored one. Raises BadReview."""
    resource = (request.resource.group, request.resource.resource)
    if resource != (GROUP, PLURAL):
        raise BadReview(f"a review of {request.resource.resource[:64]!r}: expected {PLURAL} of {GROUP}")
    if request.sub_resource or request.operation not in OPERATIONS:
        return {}, None
    try:
        job = _decoder.decode(request.object)
        former = _decoder_or_null.decode(request.old_object)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BadReview(f"not an {KIND}: {error}") from error
    return job, former if request.operation == "UPDATE" else None


def refuse_job(job: _Object, errors: Sequence[SpecError]) -> ReviewAnswer:
    """The same form as the API server's own validation: kubectl prints each cause on its own line."""
    name = mapping(job.get("metadata")).get("name")
    return ReviewAnswer(
        False,
        422,
        "Invalid",
        "; ".join(map(str, errors)),
        {
            "group": GROUP,
            "kind": KIND,
            "name": name[:253] if isinstance(name, str) else "",
            "causes": [
                {"reason": "FieldValueInvalid", "field": error.path, "message": error.message} for error in errors
            ],
        },
    )
