"""Reviews of IPUJobs: a patch, warnings or errors come back; what is no IPUJob is told so."""

import json
from typing import Any

import msgspec
import pytest
from tests.operator.admission.specs import Spec, least, template
from tests.wording.facts import missing_facts

from muster_kube.api.errors import Unreachable
from muster_kube.api.reviews import Identity
from muster_kube.webhook.review import AdmissionRequest, BadReview, Resource, ReviewAnswer
from muster_kube.webhook.server import REVIEW_LIMIT
from muster_operator.admission.defaults import apply_defaults
from muster_operator.admission.review import JOB_LIMIT, Reviewers
from muster_operator.admission.validation import SpecLimits

FILLED_IN = {
    "/spec/workers/replicas": 1,
    "/spec/workersPerJobInstance": "1",
    "/spec/cleanPodPolicy": "None",
    "/spec/restartPolicy": {"type": "Never", "backOffLimit": 3},
}


def job(spec: object, **metadata: Any) -> Spec:
    return {"metadata": {"name": "job"} | metadata, "spec": spec}


def raw(found: object) -> msgspec.Raw:
    return msgspec.Raw(json.dumps(found).encode())


def request(asked: object, stored: object = None, **fields: Any) -> AdmissionRequest:
    given: dict[str, Any] = {
        "uid": "1",
        "user_info": Identity("ann"),
        "resource": Resource(group="graphcore.ai", version="v1alpha1", resource="ipujobs"),
        "namespace": "team",
        "operation": "CREATE" if stored is None else "UPDATE",
        "object": raw(asked),
        "old_object": raw(stored),
    }
    return AdmissionRequest(**given | fields)


class Webhooks:
    """makers: who may create pods, as (user, namespace); away: nobody can say."""

    def __init__(self, *scope: str) -> None:
        self.told: list[tuple[str, str]] = []
        self.makers = {("ann", "team")}
        self.away = False
        self.reviewers = Reviewers(
            SpecLimits(), scope, lambda webhook, answer: self.told.append((webhook, answer)), self.may_create_pods
        )

    async def may_create_pods(self, user: Identity, namespace: str) -> bool:
        if self.away:
            raise Unreachable("no route", "/subjectaccessreviews")
        return (user.user, namespace) in self.makers

    async def mutate(self, *asked: Any, **fields: Any) -> ReviewAnswer:
        return await self.reviewers.mutate(request(*asked, **fields))

    async def validate(self, *asked: Any, **fields: Any) -> ReviewAnswer:
        return await self.reviewers.validate(request(*asked, **fields))


@pytest.fixture
def asked() -> Webhooks:
    return Webhooks()


async def test_what_is_missing_comes_as_a_patch_and_then_no_more(asked: Webhooks) -> None:
    answer = await asked.mutate(job(least()))
    assert {each["path"]: each["value"] for each in answer.patch} == FILLED_IN
    assert {each["op"] for each in answer.patch} == {"add"}
    again = await asked.mutate(job(apply_defaults(least()).spec))
    assert (again.allowed, again.patch, again.warnings) == (True, (), ())
    assert asked.told == [("mutate", "allowed")] * 2


async def test_an_update_is_filled_in_by_what_is_stored(asked: Webhooks) -> None:
    stored = apply_defaults(least()).spec
    answer = await asked.mutate(job(stored | {"workersPerJobInstance": "2"}), job(stored))
    assert answer.patch == ({"op": "replace", "path": "/spec/workers/replicas", "value": 2},)


async def test_warnings_come_with_the_patch(asked: Webhooks) -> None:
    (warning,) = (await asked.mutate(job(least(workerPerJobInstance="2")))).warnings
    assert not missing_facts(warning, "spec.workerPerJobInstance", "spec.workersPerJobInstance")


async def test_a_refusal_is_as_the_api_servers_own(asked: Webhooks) -> None:
    answer = await asked.validate(job(apply_defaults(least(ipusPerJobInstance="3", jobInstances=-1)).spec))
    assert (answer.allowed, answer.code, answer.reason) == (False, 422, "Invalid")
    assert answer.details is not None
    assert (answer.details["kind"], answer.details["name"]) == ("IPUJob", "job")
    causes: Any = answer.details["causes"]
    assert [cause["field"] for cause in causes] == ["spec.jobInstances", "spec.ipusPerJobInstance"]
    for cause in causes:
        assert f"{cause['field']}: {cause['message']}" in answer.message
    assert asked.told == [("validate", "refused")]


async def test_5_an_alpha_5_form_that_cannot_be_translated_is_refused_where_it_was_written(asked: Webhooks) -> None:
    """Behaviour 5."""
    spec = least() | {"modelReplicas": "four", "ipusPerModelReplica": "1"}
    del spec["ipusPerJobInstance"]
    answer = await asked.mutate(job(spec))
    assert (answer.allowed, answer.code) == (False, 422)
    assert answer.message.startswith('spec.modelReplicas: "four"')
    going = await asked.mutate(job(spec, deletionTimestamp="2026-01-01T00:00:00Z"), job(spec))
    assert going.allowed


async def test_jobs_outside_the_scope_pass_unchanged() -> None:
    asked = Webhooks("team", "other")
    bad = job(least(ipusPerJobInstance="3"))
    assert not (await asked.validate(bad)).allowed
    assert (await asked.validate(bad, namespace="elsewhere")).allowed
    assert (await asked.mutate(bad, namespace="elsewhere")).patch == ()


async def test_subresources_and_deletions_are_not_judged(asked: Webhooks) -> None:
    bad = job(least(ipusPerJobInstance="3"))
    assert (await asked.validate(bad, bad, sub_resource="status")).allowed
    assert (await asked.validate(None, bad, operation="DELETE")).allowed
    assert (await asked.mutate(None, bad, operation="DELETE")).patch == ()


async def test_a_job_is_never_so_large_that_it_could_not_lose_its_finaliser(asked: Webhooks) -> None:
    """Behaviour 15: a review that is too large is refused, and an update's holds the job twice."""
    assert 2 * JOB_LIMIT + (1 << 20) < REVIEW_LIMIT
    small = apply_defaults(least()).spec
    large = small | {"aFieldOfAYearToCome": "<" * JOB_LIMIT}
    for review in (asked.mutate, asked.validate):
        answer = await review(job(large))
        assert (answer.allowed, answer.code) == (False, 413)
    assert not (await asked.validate(job(large), job(small))).allowed
    assert (await asked.validate(job(large, finalizers=[]), job(large, finalizers=["a"]))).allowed
    assert (await asked.validate(job(large, deletionTimestamp="2026-01-01T00:00:00Z"), job(small))).allowed


@pytest.mark.parametrize("spec", [None, [], "spec", 1])
async def test_without_a_spec_the_schema_has_the_word(asked: Webhooks, spec: object) -> None:
    answer = await asked.mutate(job(spec))
    assert (answer.allowed, answer.patch) == (True, ())
    assert not (await asked.validate(job(spec))).allowed


@pytest.mark.parametrize("body", [None, [], "job", 1])
async def test_14_what_is_no_job_is_told_so(asked: Webhooks, body: object) -> None:
    """Behaviour 14: an HTTP 400."""
    for review in (asked.mutate, asked.validate):
        with pytest.raises(BadReview, match="IPUJob"):
            await review(body)


async def test_14_what_is_deeper_than_anybody_reads_is_told_so(asked: Webhooks) -> None:
    """Behaviour 14."""
    deep = msgspec.Raw(b'{"spec":' + b"[" * 100_000 + b"]" * 100_000 + b"}")
    with pytest.raises(BadReview):
        await asked.mutate(None, object=deep)


async def test_14_reviews_of_other_kinds_are_told_so(asked: Webhooks) -> None:
    """Behaviour 14."""
    with pytest.raises(BadReview, match=r"'pods'.*ipujobs.*graphcore"):
        await asked.validate(job(least()), resource=Resource(version="v1", resource="pods"))


async def test_a_new_job_of_a_kueue_queue_is_suspended_and_resumed_by_whoever_does(asked: Webhooks) -> None:
    labels = {"kueue.x-k8s.io/queue-name": "team-a"}
    answer = await asked.mutate(job(least(), labels=labels))
    assert answer.patch is not None
    assert {each["path"]: each["value"] for each in answer.patch} == FILLED_IN | {"/spec/suspend": True}
    assert not missing_facts(answer.warnings[0], "team-a")
    stored = job(apply_defaults(least()).spec | {"suspend": True}, labels=labels)
    assert not (await asked.mutate(stored)).patch, "again changes nothing"
    resumed = job(stored["spec"] | {"suspend": False}, labels=labels)
    assert not (await asked.mutate(resumed, stored)).patch
    for name in ("", None):
        answer = await asked.mutate(job(least(), labels={"kueue.x-k8s.io/queue-name": name}))
        assert "/spec/suspend" not in {each["path"] for each in answer.patch or ()}


BOB = Identity("bob")


async def test_who_may_not_create_pods_may_not_have_the_operator_create_them(asked: Webhooks) -> None:
    answer = await asked.validate(job(apply_defaults(least()).spec), user_info=BOB)
    assert (answer.allowed, answer.code, answer.reason) == (False, 403, "Forbidden")
    assert not missing_facts(answer.message, '"bob"', '"team"', "create pods")
    assert (await asked.validate(job(apply_defaults(least()).spec))).allowed


CHECKPOINT = {"onFault": "Move", "checkpoint": {"command": ["save"]}}
OTHER_IMAGE = {"template": template(image="other:1")}


@pytest.mark.parametrize(
    "change", [{"workers": OTHER_IMAGE}, {"healthPolicy": CHECKPOINT}], ids=["image", "checkpoint"]
)
async def test_nor_change_what_the_pods_run(asked: Webhooks, change: Spec) -> None:
    stored = apply_defaults(least()).spec
    answer = await asked.validate(job(stored | change), job(stored), user_info=BOB)
    assert (answer.allowed, answer.code) == (False, 403)


@pytest.mark.parametrize("change", [{"jobInstances": 2}, {"suspend": True}, {"ttlSecondsAfterFinished": 5}])
async def test_but_may_scale_and_stop_a_job(asked: Webhooks, change: Spec) -> None:
    stored = apply_defaults(least()).spec
    assert (await asked.validate(job(stored | change), job(stored), user_info=BOB)).allowed


async def test_a_right_that_cannot_be_checked_is_not_taken_as_given(asked: Webhooks) -> None:
    """An HTTP error would let the job pass where the failurePolicy is Ignore."""
    asked.away = True
    answer = await asked.validate(job(apply_defaults(least()).spec))
    assert (answer.allowed, answer.code) == (False, 503)
