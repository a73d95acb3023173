"""Validating: each rule by a table, all errors at once, and what an update may change."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.operator.admission.specs import CONTAINER, Spec, least, samples, specs, template, workers
from tests.wording.facts import missing_facts

from muster_operator.admission.defaults import apply_defaults
from muster_operator.admission.errors import ERRORS_LIMIT, SpecError, limit_errors, show_value
from muster_operator.admission.validation import SpecLimits, review_spec, validate
from muster_operator.job.types import INSTANCES_LIMIT, decode_job

LIMITS = SpecLimits()


def errors(spec: Spec, name: str = "job", limits: SpecLimits = LIMITS, **metadata: Any) -> list[str]:
    """Of a new job, as the API server has it judged: after defaulting."""
    job = {"metadata": {"name": name} | metadata, "spec": apply_defaults(spec).spec}
    return [str(error) for error in review_spec(job, None, limits).errors]


def changed(before: Spec, after: Spec, **metadata: Any) -> list[str]:
    stored = apply_defaults(before).spec
    job = {"metadata": {"name": "job"} | metadata, "spec": apply_defaults(after, stored).spec}
    return [str(error) for error in review_spec(job, {"metadata": {"name": "job"}, "spec": stored}, LIMITS).errors]


def test_the_least_is_enough() -> None:
    assert errors(least()) == []


@pytest.mark.parametrize(("levels", "refused"), [(80, False), (100, True), (900, True)])
def test_a_template_that_is_nested_too_deeply_is_refused(levels: int, refused: bool) -> None:
    """Python's decoders end at about a thousand levels: what one reader still takes might stop another."""
    deep: dict[str, Any] = {}
    for _ in range(levels):
        deep = {"a": deep}
    spec = least()
    spec["workers"]["template"]["x"] = deep
    found = errors(spec)
    assert [error.split(":")[0] for error in found] == ["spec"] * refused
    assert not missing_facts(" ".join(found), *["100"] * refused)


@pytest.mark.parametrize("size", ["3", "0", "-2", "1.5", "abc", "", " 2", "02", "٢", "2\n", "9" * 5000, 2, 2.0, None])
def test_7_a_size_is_a_power_of_two_as_text(size: object) -> None:
    """Behaviour 7."""
    (error,) = errors(least() | {"ipusPerJobInstance": size})
    assert error.startswith(f"spec.ipusPerJobInstance: {show_value(size)}: ")
    assert not missing_facts(error, '"1"', '"64"')
    assert len(error) < 200


@pytest.mark.parametrize("size", ["1", "2", "4", "8", "16", "32", "64"])
def test_7_all_sizes_of_partitions_are_allowed(size: str) -> None:
    """Behaviour 7."""
    assert errors(least(ipusPerJobInstance=size)) == []


def test_8_the_largest_size_is_a_setting() -> None:
    """Behaviour 8."""
    spec = least(ipusPerJobInstance="128")
    [error] = errors(spec)
    assert error.startswith('spec.ipusPerJobInstance: "128": ')
    assert not missing_facts(error, '"64"')
    assert errors(spec, limits=SpecLimits(max_ipus=128)) == []
    assert not missing_facts(errors(least(ipusPerJobInstance="256"), limits=SpecLimits(max_ipus=128))[0], '"128"')


@pytest.mark.parametrize("group", ["1", "2", "4"])
def test_9_workers_get_equal_shares(group: str) -> None:
    """Behaviour 9."""
    assert errors(least(workersPerJobInstance=group)) == []


@pytest.mark.parametrize("group", ["8", "3"])
def test_9_more_workers_than_ipus_or_unequal_shares_are_refused(group: str) -> None:
    """Behaviour 9."""
    error = errors(least(workersPerJobInstance=group))[0]
    assert error.startswith(f'spec.workersPerJobInstance: "{group}"')
    assert not missing_facts(error, '"4"')


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("a" * 54, {}),
        ("a" * 54, {"jobInstances": 10}),
        ("a" * 52, {"jobInstances": 26, "workersPerJobInstance": "4"}),
        ("a" * 54, {"jobInstances": 0}),
        ("a" * 54, {"launcher": {"command": ["mpirun"]}}),
        ("a", {}),
    ],
)
def test_10_pods_names_are_hosts(name: str, fields: Spec) -> None:
    """Behaviour 10."""
    assert errors(least(**fields), name) == []


@pytest.mark.parametrize(
    ("name", "fields", "facts"),
    [
        ("a" * 55, {}, ("54", "-worker-0", "63")),
        ("a" * 63, {}, ("54",)),
        ("a" * 54, {"jobInstances": 11}, ("53", "-worker-10")),
        ("a" * 53, {"jobInstances": 26, "workersPerJobInstance": "4"}, ("52", "-worker-103")),
        ("a" * 55, {"interactive": {"ttl": 9}}, ("54",)),
        ("1-foo", {}, ()),
        ("a.b", {}, ()),
        ("a-", {}, ()),
        ("-a", {}, ()),
        ("A", {}, ()),
        ("a\n", {}, ()),
    ],
)
def test_10_a_name_that_makes_no_host_of_a_pod_is_refused(name: str, fields: Spec, facts: tuple[str, ...]) -> None:
    """Behaviour 10."""
    [error] = errors(least(**fields), name)
    assert error.startswith(f"metadata.name: {show_value(name)}")
    assert not missing_facts(error, *facts)


def test_10_a_generated_name_is_counted_with_what_is_added() -> None:
    """Behaviour 10."""
    assert errors(least(), "", generateName="a" * 49) == []
    assert "metadata.name" in errors(least(), "", generateName="a" * 50)[0]
    assert errors(least(), "", generateName="job-") == []
    assert "metadata.name" in errors(least(), "")[0]


@pytest.mark.parametrize("codes", ["1,3,128-255", "1", "255", "128-255", "7-7"])
def test_11_exit_codes(codes: str) -> None:
    """Behaviour 11."""
    assert errors(least(restartPolicy={"type": "ExitCode", "exitCodes": codes})) == []


@pytest.mark.parametrize(
    "codes",
    ["a", "9-", "300", "200-100", "", "-1", "1,", "1 ,2", "0", "0-255", "1-2-3", "1,2," + "3," * 600 + "4", 137],
)
def test_11_what_are_no_exit_codes(codes: object) -> None:
    """Behaviour 11."""
    (error,) = errors(least(restartPolicy={"type": "ExitCode", "exitCodes": codes}))
    assert error.startswith("spec.restartPolicy.exitCodes: ")


@pytest.mark.parametrize("ttl", [0, -1, None, "60", True, 2**31, 10**400])
def test_12_a_session_lives_for_seconds(ttl: object) -> None:
    """Behaviour 12."""
    (error,) = errors(least(interactive={"ttl": ttl}))
    assert error.startswith("spec.interactive.ttl: ")


def test_12_a_session_has_no_launcher_of_its_own() -> None:
    """Behaviour 12."""
    (error,) = errors(least(interactive={"ttl": 60}, launcher={"command": ["mpirun"]}))
    assert error.startswith("spec.interactive: ")
    assert not missing_facts(error, "launcher", "interactive")


@pytest.mark.parametrize(
    ("fields", "facts"),
    [
        ({"jobInstances": -1}, ("spec.jobInstances: -1", f"{INSTANCES_LIMIT}")),
        ({"jobInstances": 10**500}, (f"spec.jobInstances: {show_value(10**500)}", "1661")),
        ({"jobInstances": True}, ("spec.jobInstances: true",)),
        ({"jobInstances": 4096, "workersPerJobInstance": "4"}, ("spec.jobInstances: 4096", "4")),
        ({"workersPerJobInstance": "0"}, ('spec.workersPerJobInstance: "0"',)),
        ({"workers": workers(0)}, ("spec.workers.replicas: 0",)),
        ({"workers": workers("2")}, ('spec.workers.replicas: "2"',)),
        (
            {"workersPerJobInstance": "2", "workers": workers(1)},
            ('spec.workersPerJobInstance: "2"', "spec.workers.replicas", "1"),
        ),
        (
            {"workerPerJobInstance": "2", "workers": workers(1)},
            ('spec.workerPerJobInstance: "2"', "spec.workers.replicas"),
        ),
        ({"workerPerJobInstance": "2", "workersPerJobInstance": "1"}, ('"2"', "spec.workersPerJobInstance", '"1"')),
        ({"workerPerJobInstance": "x"}, ('spec.workerPerJobInstance: "x"',)),
        ({"modelReplicasPerWorker": "none"}, ('spec.modelReplicasPerWorker: "none"',)),
        ({"modelReplicas": "4", "ipusPerModelReplica": "2"}, ("modelReplicas", "ipusPerModelReplica", '"8"')),
        ({"modelReplicas": "4"}, ("spec.ipusPerModelReplica: missing", "spec.modelReplicas")),
        ({"launcher": {"command": []}}, ("spec.launcher.command: missing",)),
        ({"launcher": {"command": ["a", 1]}}, ("spec.launcher.command[1]: 1",)),
        ({"launcher": {"command": ["a"], "env": [{"name": "A", "value": 1}]}}, ("spec.launcher.env[0].value: 1",)),
        ({"launcher": {"command": ["a"], "env": [{"value": "1"}]}}, ("spec.launcher.env[0].name: null",)),
    ],
)
def test_each_error_names_its_place_what_was_found_and_what_is_allowed(fields: Spec, facts: tuple[str, ...]) -> None:
    found = errors(least(**fields))
    assert any(not missing_facts(error, *facts) for error in found), found


@pytest.mark.parametrize(
    ("rolling", "said"),
    [
        ({"maxSurge": 1, "maxUnavailable": "25%"}, ""),
        ({"maxSurge": 0}, ""),
        ({"maxSurge": -1}, "rollingUpdate.maxSurge: -1"),
        ({"maxUnavailable": "a quarter"}, 'rollingUpdate.maxUnavailable: "a quarter"'),
        ({"maxSurge": 0, "maxUnavailable": "0%"}, "spec.workers.strategy.rollingUpdate: maxSurge and maxUnavailable"),
    ],
)
def test_bounds_of_a_rolling_update(rolling: Spec, said: str) -> None:
    found = errors(least(workers={"template": template(), "strategy": {"rollingUpdate": rolling}}))
    assert found == [] if not said else said in found[0]


def test_all_that_is_wrong_is_said_at_once() -> None:
    spec = least(
        ipusPerJobInstance="3",
        jobInstances=-1,
        interactive={"ttl": 0},
        launcher={"command": ["mpirun"]},
        restartPolicy={"type": "ExitCode", "exitCodes": "9-"},
        workers={"template": {"spec": {"containers": []}}},
    )
    assert [error.partition(": ")[0] for error in errors(spec, "1-foo")] == [
        "spec.jobInstances",
        "spec.ipusPerJobInstance",
        "metadata.name",
        "spec.interactive",
        "spec.interactive.ttl",
        "spec.restartPolicy.exitCodes",
        "spec.workers.template.spec.containers",
    ]


def test_errors_are_bounded_in_number_and_length() -> None:
    many = [{"name": "x" * 10_000, "image": "y" * 10_000 + " "} for _ in range(1000)]
    found = errors(least(workers={"template": {"spec": {"containers": many}}}))
    assert len(found) == ERRORS_LIMIT + 1
    assert found[-1].startswith("spec: ")
    assert not missing_facts(found[-1], f"{2000 - ERRORS_LIMIT}")
    assert sum(map(len, found)) < 8000
    assert limit_errors([SpecError("a", "b")] * 100) == (SpecError("a", "b"),)


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"ipusPerJobInstance": "8"}, "spec.ipusPerJobInstance"),
        ({"workersPerJobInstance": "2"}, "spec.workersPerJobInstance"),
        ({"workers": workers(2)}, "spec.workersPerJobInstance"),
        ({"launcher": {"command": ["mpirun", "b"]}}, "spec.launcher"),
        ({"launcher": None}, "spec.launcher"),
        ({"launcher": None, "interactive": {"ttl": 60}}, "spec.launcher"),
    ],
)
def test_13_what_pods_and_partitions_were_made_to_changes_only_while_suspended(change: Spec, path: str) -> None:
    """Behaviour 13."""
    before = apply_defaults(least(launcher={"command": ["mpirun", "a"]})).spec
    found = changed(before, before | change)
    assert found[0].startswith(f"{path}: ")
    assert not missing_facts(found[0], "spec.suspend: true")
    assert changed(before, before | change | {"suspend": True}) != []
    assert changed(before | {"suspend": True}, before | change | {"suspend": True}) == []
    assert changed(before | {"suspend": True}, before | change) == []


@pytest.mark.parametrize(
    "change",
    [
        {"jobInstances": 4},
        {"restartPolicy": {"type": "Always"}},
        {"cleanPodPolicy": "All"},
        {"suspend": True},
        {"workers": workers(1) | {"template": template(image="main:2")}},
        {"activeDeadlineSeconds": 60},
    ],
)
def test_13_the_rest_changes_at_any_time(change: Spec) -> None:
    """Behaviour 13."""
    assert changed(least(), least() | change) == []


def test_13_under_a_launcher_the_template_changes_only_while_suspended() -> None:
    other = {"workers": workers(1) | {"template": template(image="main:2")}}
    for mode in ({"launcher": {"command": ["mpirun"]}}, {"interactive": {"ttl": 60}}):
        before = least(**mode)
        [said] = changed(before, before | other)
        assert said.startswith("spec.workers.template: ")
        assert changed(before | {"suspend": True}, before | other) == []
        assert changed(before, before | other | {"suspend": True}) == [], "as Kueue takes a job back"


def test_13_the_time_of_a_session_can_be_changed() -> None:
    assert changed(least(interactive={"ttl": 60}), least(interactive={"ttl": 7200})) == []


def test_15_what_was_stored_once_is_no_reason_to_refuse_another_change() -> None:
    """Behaviour 15: a lower limit, or an update that no webhook saw."""
    before = least(ipusPerJobInstance="128", restartPolicy={"type": "ExitCode", "exitCodes": "300"})
    assert changed(before, before | {"jobInstances": 2}) == []
    assert changed(before, before | {"restartPolicy": {"type": "ExitCode", "exitCodes": "301"}}) != []


def test_15_what_is_being_deleted_is_refused_nothing() -> None:
    """Behaviour 15: taking a finaliser off is an update."""
    assert changed(least(), least(ipusPerJobInstance="3"), deletionTimestamp="2026-01-01T00:00:00Z") == []


def test_warnings_of_what_has_no_effect() -> None:
    policy = {"type": "OnFailure", "exitCodes": "1"}
    spec = apply_defaults(least(restartPolicy=policy, cleanPodPolicy="All")).spec
    codes, clean = review_spec({"metadata": {"name": "job"}, "spec": spec}, None, LIMITS).warnings
    assert codes.startswith("spec.restartPolicy.exitCodes: ")
    assert clean.startswith("spec.cleanPodPolicy All: ")


@pytest.mark.parametrize(("name", "job"), samples(), ids=lambda value: value if isinstance(value, str) else "")
def test_the_operators_own_look_agrees_with_the_webhook(name: str, job: Spec) -> None:
    """Defaulted or not: an update may have met no webhook."""
    for spec in (job["spec"], apply_defaults(job["spec"]).spec):
        assert validate(decode_job(msgspec.json.encode(job | {"spec": spec})), LIMITS) == ()
        if "ipusPerJobInstance" in spec:
            bad = decode_job(msgspec.json.encode(job | {"spec": spec | {"ipusPerJobInstance": "3"}}))
            assert validate(bad, LIMITS)[0].path == "spec.ipusPerJobInstance"


@given(specs, st.one_of(st.none(), specs), st.sampled_from(["job", "1-foo", "a" * 63]))
def test_no_spec_whatever_makes_it_fail(spec: Spec, stored: Spec | None, name: str) -> None:
    former = None if stored is None else {"metadata": {"name": name}, "spec": stored}
    review_spec({"metadata": {"name": name}, "spec": apply_defaults(spec, stored).spec}, former, LIMITS)
    review_spec({"metadata": name, "spec": spec}, former, LIMITS)


def test_forty_containers_are_allowed_and_none_are_not() -> None:
    forty = [CONTAINER | {"name": f"c{number}"} for number in range(40)]
    assert errors(least(workers={"template": {"spec": {"containers": forty}}})) == []
    for containers in (list[Spec](), None):
        (error,) = errors(least(workers={"template": {"spec": {"containers": containers}}}))
        assert error.startswith("spec.workers.template.spec.containers: ")


def test_a_mount_where_the_launcher_has_its_own_is_denied_where_there_is_one() -> None:
    mounted = template(volumeMounts=[{"name": "data", "mountPath": "/etc/mpi"}])
    mounted["spec"]["volumes"] = [{"name": "data", "emptyDir": {}}]
    spec = least(workers={"template": mounted})
    assert errors(spec) == []
    for mode in ({"launcher": {"command": ["mpirun"]}}, {"interactive": {"ttl": 60}}):
        [error] = errors(spec | mode)
        assert error.startswith("spec.workers.template.spec.containers[0].volumeMounts[0].mountPath: ")
