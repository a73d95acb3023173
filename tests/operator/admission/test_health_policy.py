"""healthPolicy: what is refused of it, what means nothing, and what becomes of it in pods."""

from typing import Any

import pytest
from tests.operator.plan.job_factory import make_entry, make_job, template
from tests.wording.facts import missing_facts

from muster_operator.admission.errors import show_value
from muster_operator.admission.validation import SpecLimits, review_spec
from muster_operator.job.snapshot import JobSetup
from muster_operator.resources.pods import build_launcher, build_worker

SAVE = {"command": ["/bin/save", "--all"]}


def review(policy: dict[str, Any], limits: SpecLimits | None = None, **spec: Any) -> tuple[list[str], tuple[str, ...]]:
    whole = {
        "jobInstances": 1,
        "ipusPerJobInstance": "4",
        "workersPerJobInstance": "1",
        "workers": {"template": template()},
        "healthPolicy": policy,
        **spec,
    }
    found = review_spec({"metadata": {"name": "train"}, "spec": whole}, None, limits or SpecLimits())
    return [str(error) for error in found.errors], found.warnings


@pytest.mark.parametrize(
    "policy",
    [
        {},
        {"onFault": "Move"},
        {"onFault": "Move", "checkpoint": SAVE, "gracePeriodSeconds": 600},
        {"onFault": "Move", "checkpoint": {"signal": "SIGUSR1"}},
    ],
)
def test_what_can_be_done_is_taken_without_a_word(policy: dict[str, Any]) -> None:
    assert review(policy) == ([], ())


@pytest.mark.parametrize(
    ("more", "path", "facts"),
    [
        ({"checkpoint": {}}, "checkpoint", ("command", "signal")),
        ({"checkpoint": {**SAVE, "signal": "SIGTERM"}}, "checkpoint", ("command", "signal")),
        ({"checkpoint": {"command": []}}, "checkpoint.command", ("0", "1 to 64")),
        ({"checkpoint": {"command": ["x" * 9000]}}, "checkpoint.command", ("8192",)),
        ({"checkpoint": {"command": [7]}}, "checkpoint.command[0]", ("7",)),
        (
            {"checkpoint": {"signal": "SIGKILL"}},
            "checkpoint.signal",
            ('"SIGKILL"', "SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2"),
        ),
        ({"gracePeriodSeconds": 0}, "gracePeriodSeconds", ("0", "1 to 86400")),
        ({"gracePeriodSeconds": True}, "gracePeriodSeconds", ("true", "1 to 86400")),
    ],
)
def test_what_cannot_be_done_is_refused_with_its_path(more: dict[str, Any], path: str, facts: tuple[str, ...]) -> None:
    [error] = review({"onFault": "Move", **more})[0]
    assert error.startswith(f"spec.healthPolicy.{path}: ")
    assert not missing_facts(error.partition(": ")[2], *facts)


@pytest.mark.parametrize("key", ["hostPID", "shareProcessNamespace"])
def test_a_signal_is_refused_where_process_1_is_not_the_container_s(key: str) -> None:
    workers = {"template": template(**{key: True})}
    limits = SpecLimits(allow=frozenset(["hostPID"]))
    [error] = review({"onFault": "Move", "checkpoint": {"signal": "SIGINT"}}, limits, workers=workers)[0]
    assert error.startswith('spec.healthPolicy.checkpoint.signal: "SIGINT": ')
    assert not missing_facts(error, "SIGTERM", "command", "workers.template", key)
    assert review({"onFault": "Move", "checkpoint": SAVE}, limits, workers=workers)[0] == []


def test_a_worker_has_one_hook_only() -> None:
    hook = {"preStop": {"exec": {"command": ["/bin/true"]}}}
    workers = {"template": template(containers=[{"name": "main", "image": "poplar:3", "lifecycle": hook}])}
    policy = {"onFault": "Move", "checkpoint": SAVE}
    [error] = review(policy, workers=workers)[0]
    assert error.startswith("spec.workers.template.spec.containers[0].lifecycle.preStop: ")
    assert not missing_facts(error, "spec.healthPolicy.checkpoint")
    assert review(policy, workers=workers, launcher={"command": ["mpirun"]})[0] == [], "the launcher has one of its own"


def test_what_means_nothing_is_a_warning() -> None:
    errors, warnings = review({"checkpoint": SAVE, "gracePeriodSeconds": 5})
    assert errors == []
    for warning, field in zip(warnings, ("checkpoint", "gracePeriodSeconds"), strict=True):
        assert warning.startswith(f"spec.healthPolicy.{field}: ")
        assert not missing_facts(warning, 'onFault "Keep"')
    [warning] = review({"onFault": "Move", "tolerateFaulty": True})[1]
    assert not missing_facts(warning, "spec.healthPolicy.onFault", "tolerateFaulty")


@pytest.mark.parametrize("with_launcher", [True, False])
def test_63_the_pod_that_leads_saves_the_state_before_it_ends(with_launcher: bool) -> None:
    job = make_job(launcher=with_launcher, healthPolicy={"onFault": "Move", "checkpoint": SAVE})
    entry = make_entry(job)
    [of_worker] = build_worker(job, 0, entry, 0, JobSetup())["spec"]["containers"]
    [of_launcher] = build_launcher(job, [entry], 0, JobSetup())["spec"]["containers"]
    hook = {"preStop": {"exec": {"command": ["/bin/save", "--all"]}}}
    assert of_launcher["lifecycle"] == hook
    assert of_worker.get("lifecycle") == (None if with_launcher else hook)


def test_63_a_signal_is_sent_by_name_and_sigterm_by_nobody() -> None:
    for signal, words in (
        ("SIGUSR1", ["/bin/sh", "-c", "kill -s USR1 1; while kill -0 1 2>/dev/null; do sleep 1; done"]),
        ("SIGTERM", None),
    ):
        job = make_job(healthPolicy={"onFault": "Move", "checkpoint": {"signal": signal}})
        [container] = build_launcher(job, [make_entry(job)], 0, JobSetup())["spec"]["containers"]
        found = container.get("lifecycle", {}).get("preStop", {}).get("exec", {}).get("command")
        assert found == words


def test_checks_before_the_launcher_are_taken_where_there_is_one() -> None:
    policy = {"preFlight": {"checks": ["ipulink", "pciebw"], "timeoutSeconds": 3600, "mustPass": True}}
    for there in ({"launcher": {"command": ["mpirun"]}}, {"interactive": {"ttl": 60}}):
        assert review(policy, **there) == ([], ())
    [error] = review(policy)[0]
    assert error.startswith("spec.healthPolicy.preFlight: ")
    assert not missing_facts(error, "launcher", "interactive")


@pytest.mark.parametrize(
    ("given", "place", "allowed"),
    [
        ({}, "checks: null: ", "1 to 16"),
        ({"checks": []}, f"checks: {show_value([])}: ", "1 to 16"),
        ({"checks": [f"c{n}" for n in range(17)]}, "checks: ", "1 to 16"),
        ({"checks": ["ipu", "Dcgm"]}, 'checks[1]: "Dcgm": ', "lower-case"),
        ({"checks": ["ipu", "ipu"]}, 'checks[1]: "ipu": ', "once"),
        ({"checks": ["ipu"], "timeoutSeconds": 9}, "timeoutSeconds: 9: ", "10 to 3600"),
        ({"checks": ["ipu"], "timeoutSeconds": 1.5}, "timeoutSeconds: 1.5: ", "10 to 3600"),
    ],
)
def test_what_checks_cannot_be_is_refused_with_its_path(given: dict[str, Any], place: str, allowed: str) -> None:
    [said] = review({"preFlight": given}, launcher={"command": ["mpirun"]})[0]
    assert said.startswith(f"spec.healthPolicy.preFlight.{place}")
    assert not missing_facts(said, allowed)
