"""Defaulting: what is filled in, what older forms become, and that doing it twice changes nothing."""

import copy
from typing import Any

import pytest
from hypothesis import given
from tests.operator.admission.specs import Spec, least, samples, specs, valid_specs, workers
from tests.shared_data import SharedData

from muster_operator.admission.defaults import apply_defaults
from muster_operator.admission.json_patch import make_patch
from muster_operator.admission.validation import SpecLimits, review_spec

LIMITS = SpecLimits()
FACTORS = {"modelReplicas": "4", "ipusPerModelReplica": "2"}


def alpha5(**fields: Any) -> Spec:
    return least(**({"jobInstances": None, "ipusPerJobInstance": None} | FACTORS | fields))


def test_2_what_is_not_said_is_filled_in() -> None:
    """Behaviour 2."""
    found = apply_defaults(least())
    assert found.spec == least(
        cleanPodPolicy="None",
        restartPolicy={"type": "Never", "backOffLimit": 3},
        workersPerJobInstance="1",
        workers=workers(1),
    )
    assert (found.warnings, found.errors) == ((), ())


def test_what_is_said_stays() -> None:
    spec = least(
        cleanPodPolicy="All",
        restartPolicy={"type": "Always", "backOffLimit": 0},
        workersPerJobInstance="2",
        workers=workers(2),
    )
    assert apply_defaults(spec).spec == spec


@pytest.mark.parametrize("name", ["cleanPodPolicy", "restartPolicy", "workersPerJobInstance", "workerPerJobInstance"])
def test_null_counts_as_nothing(name: str) -> None:
    spec = least() | {name: None}
    assert apply_defaults(spec).spec == apply_defaults(least()).spec | (
        {name: None} if name == "workerPerJobInstance" else {}
    )


@pytest.mark.parametrize(
    ("given", "text", "replicas"),
    [
        ({"workersPerJobInstance": "2"}, "2", 2),
        ({"workers": workers(4)}, "4", 4),
        ({"workerPerJobInstance": "2"}, "2", 2),
        ({"workerPerJobInstance": "2", "workers": workers(2)}, "2", 2),
        ({"workersPerJobInstance": "2", "workers": workers(1)}, "2", 1),
        ({"workersPerJobInstance": "abc", "workers": workers(1)}, "abc", 1),
        ({"workersPerJobInstance": "2", "workers": workers("2")}, "2", "2"),
        ({"workersPerJobInstance": "2", "workers": workers(True)}, "2", True),
    ],
)
def test_both_numbers_of_workers_say_the_same_or_are_left_to_be_denied(given: Spec, text: str, replicas: int) -> None:
    """Behaviour 4, where one is the older spelling."""
    spec = apply_defaults(least(**given)).spec
    assert (spec["workersPerJobInstance"], spec["workers"]["replicas"]) == (text, replicas)


def test_4_the_older_spelling_is_told_once() -> None:
    """Behaviour 4."""
    first = apply_defaults(least(workerPerJobInstance="2"))
    (warning,) = first.warnings
    assert "spec.workerPerJobInstance" in warning
    assert "spec.workersPerJobInstance" in warning
    assert apply_defaults(first.spec, first.spec).warnings == ()


@pytest.mark.parametrize(
    "changed",
    [{"workersPerJobInstance": "4"}, {"workers": workers(4)}, {"workerPerJobInstance": "4"}],
)
def test_of_fields_that_say_the_same_the_changed_one_counts(changed: Spec) -> None:
    stored = apply_defaults(least(workerPerJobInstance="2")).spec
    spec = apply_defaults(stored | changed, stored).spec
    assert (spec["workersPerJobInstance"], spec["workers"]["replicas"]) == ("4", 4)
    assert spec["workerPerJobInstance"] == "4"


def test_two_changes_that_disagree_are_left_to_be_denied() -> None:
    stored = apply_defaults(least()).spec
    spec = apply_defaults(stored | {"workersPerJobInstance": "2", "workers": workers(4)}, stored).spec
    assert (spec["workersPerJobInstance"], spec["workers"]["replicas"]) == ("2", 4)


def test_5_the_alpha_5_form_is_translated_and_kept() -> None:
    """Behaviour 5."""
    found = apply_defaults(alpha5())
    assert (found.spec["jobInstances"], found.spec["ipusPerJobInstance"]) == (1, "8")
    assert {key: found.spec[key] for key in FACTORS} == FACTORS
    (warning,) = found.warnings
    assert [fact for fact in ("4 times 2", "spec.ipusPerJobInstance", '"8"') if fact not in warning] == []
    again = apply_defaults(found.spec, found.spec)
    assert (again.spec, again.warnings) == (found.spec, ())


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"modelReplicas": None}, "spec.modelReplicas"),
        ({"ipusPerModelReplica": None}, "spec.ipusPerModelReplica"),
        ({"modelReplicas": "four"}, "spec.modelReplicas"),
        ({"modelReplicas": 4}, "spec.modelReplicas"),
        ({"ipusPerModelReplica": "0"}, "spec.ipusPerModelReplica"),
        ({"ipusPerModelReplica": "9" * 50}, "spec.ipusPerModelReplica"),
    ],
)
def test_5_half_an_alpha_5_form_is_an_error_that_names_the_other_half(fields: Spec, path: str) -> None:
    """Behaviour 5: the schema would only miss ipusPerJobInstance, which nobody wrote."""
    (error,) = apply_defaults(alpha5(**fields)).errors
    assert error.path == path


def test_what_is_given_is_not_overwritten_by_the_alpha_5_form() -> None:
    spec = least(**FACTORS)
    assert apply_defaults(spec).spec["ipusPerJobInstance"] == "4"
    assert apply_defaults(alpha5(jobInstances=3)).spec["jobInstances"] == 3


def test_a_changed_factor_of_the_alpha_5_form_changes_the_product() -> None:
    stored = apply_defaults(alpha5()).spec
    changed = apply_defaults(stored | {"modelReplicas": "8"}, stored)
    assert changed.spec["ipusPerJobInstance"] == "16"
    assert changed.warnings
    both = apply_defaults(stored | {"modelReplicas": "8", "ipusPerJobInstance": "4"}, stored)
    assert both.spec["ipusPerJobInstance"] == "4"


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ({"type": "OnFailure"}, {"type": "OnFailure", "backOffLimit": 3}),
        ({"type": "ExitCode"}, {"type": "ExitCode", "backOffLimit": 3, "exitCodes": "128-255"}),
        ({"type": "ExitCode", "exitCodes": "1"}, {"type": "ExitCode", "backOffLimit": 3, "exitCodes": "1"}),
        ({"type": "Never", "backOffLimit": 0}, {"type": "Never", "backOffLimit": 0}),
        ({}, {"backOffLimit": 3}),
        ("Never", "Never"),
    ],
)
def test_11_exit_codes_come_with_their_type_only(policy: object, expected: object) -> None:
    """Behaviour 11."""
    assert apply_defaults(least(restartPolicy=policy)).spec["restartPolicy"] == expected


@pytest.mark.parametrize(("name", "job"), samples(), ids=lambda value: value if isinstance(value, str) else "")
def test_every_sample_is_valid_once_it_is_filled_in(name: str, job: Spec) -> None:
    spec = apply_defaults(job["spec"]).spec
    assert review_spec(job | {"spec": spec}, None, LIMITS).errors == ()
    assert spec["ipusPerJobInstance"] == {
        "ipujob_alpha5_interactive.yaml": "2",
        "ipujob_alpha5_nfs.yaml": "4",
        "ipujob_alpha5_training.yaml": "4",
        "ipujob_interactive.yaml": "2",
    }.get(name, "1")


def test_every_published_job_is_valid_once_it_is_filled_in(shared_data: SharedData) -> None:
    published = samples(sorted((shared_data.folder / "ipu").glob("ipujob_*.yaml")))
    assert len(published) == 7
    for name, job in published:
        spec = apply_defaults(job["spec"]).spec
        assert review_spec(job | {"spec": spec}, None, LIMITS).errors == (), name
        assert spec["ipusPerJobInstance"] in ("1", "2", "4")


@given(specs)
def test_14_twice_is_once(spec: Spec) -> None:
    """Behaviour 14, for whatever somebody sends."""
    first = apply_defaults(spec)
    assert apply_defaults(first.spec).spec == first.spec
    assert make_patch(first.spec, apply_defaults(first.spec).spec, "/spec") == ()


@given(specs, specs)
def test_14_twice_is_once_on_an_update(stored: Spec, spec: Spec) -> None:
    former = apply_defaults(stored).spec
    first = apply_defaults(spec, former).spec
    assert apply_defaults(first, former).spec == first


@given(specs)
def test_no_field_is_lost_and_the_spec_that_came_is_left_alone(spec: Spec) -> None:
    before = copy.deepcopy(spec)
    made = apply_defaults(spec).spec
    assert spec == before
    assert made.keys() >= spec.keys()
    for key, value in spec.items():
        if value is not None and key not in ("workers", "restartPolicy"):
            assert made[key] == value
        if isinstance(value, dict):
            assert made[key].keys() >= value.keys()


@given(valid_specs)
def test_what_is_valid_stays_valid_and_unchanged(spec: Spec) -> None:
    job = {"metadata": {"name": "job"}, "spec": apply_defaults(spec).spec}
    assert review_spec(job, None, LIMITS).errors == ()
    assert job["spec"].items() >= {key: value for key, value in spec.items() if not isinstance(value, dict)}.items()
    assert review_spec(job, job, LIMITS) == review_spec(
        job | {"spec": apply_defaults(job["spec"], job["spec"]).spec}, job, LIMITS
    )
