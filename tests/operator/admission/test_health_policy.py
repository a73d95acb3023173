"""healthPolicy: what is refused of it, what means nothing, and what becomes of it in pods."""

from typing import Any

import pytest
from tests.operator.plan.job_factory import make_entry, make_job, template

from muster_operator.admission.validation import SpecLimits, review_spec
from muster_operator.job.snapshot import JobSetup
from muster_operator.resources.pods import build_launcher, build_worker

SAVE = {"command": ["/bin/save", "--all"]}


def review(policy: dict[str, Any], **spec: Any) -> tuple[list[str], tuple[str, ...]]:
    whole = {
        "jobInstances": 1,
        "ipusPerJobInstance": "4",
        "workersPerJobInstance": "1",
        "workers": {"template": template()},
        "healthPolicy": policy,
        **spec,
    }
    found = review_spec({"metadata": {"name": "train"}, "spec": whole}, None, SpecLimits())
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
    ("more", "error"),
    [
        ({"checkpoint": {}}, "spec.healthPolicy.checkpoint: neither is given: expected command or signal"),
        (
            {"checkpoint": {**SAVE, "signal": "SIGTERM"}},
            "spec.healthPolicy.checkpoint: both are given: expected command or signal",
        ),
        ({"checkpoint": {"command": []}}, "spec.healthPolicy.checkpoint.command: 0 words: expected 1 to 64"),
        (
            {"checkpoint": {"command": ["x" * 9000]}},
            "spec.healthPolicy.checkpoint.command: too long: expected at most 8192 characters",
        ),
        (
            {"checkpoint": {"command": [7]}},
            "spec.healthPolicy.checkpoint.command[0]: 7: expected text: put it in quotes",
        ),
        (
            {"checkpoint": {"signal": "SIGKILL"}},
            'spec.healthPolicy.checkpoint.signal: "SIGKILL": expected one of SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2',
        ),
        (
            {"gracePeriodSeconds": 0},
            "spec.healthPolicy.gracePeriodSeconds: 0: expected a number of seconds from 1 to 86400",
        ),
        (
            {"gracePeriodSeconds": True},
            "spec.healthPolicy.gracePeriodSeconds: true: expected a number of seconds from 1 to 86400",
        ),
    ],
)
def test_what_cannot_be_done_is_refused_with_its_path(more: dict[str, Any], error: str) -> None:
    assert review({"onFault": "Move", **more})[0] == [error]


@pytest.mark.parametrize("key", ["hostPID", "shareProcessNamespace"])
def test_a_signal_is_refused_where_process_1_is_not_the_container_s(key: str) -> None:
    workers = {"template": template(**{key: True})}
    assert review({"onFault": "Move", "checkpoint": {"signal": "SIGINT"}}, workers=workers)[0] == [
        f'spec.healthPolicy.checkpoint.signal: "SIGINT": expected SIGTERM or a command, as workers.template has {key}'
    ]
    assert review({"onFault": "Move", "checkpoint": SAVE}, workers=workers)[0] == []


def test_a_worker_has_one_hook_only() -> None:
    hook = {"preStop": {"exec": {"command": ["/bin/true"]}}}
    workers = {"template": template(containers=[{"name": "main", "image": "poplar:3", "lifecycle": hook}])}
    policy = {"onFault": "Move", "checkpoint": SAVE}
    assert review(policy, workers=workers)[0] == [
        "spec.workers.template.spec.containers[0].lifecycle.preStop: given beside spec.healthPolicy.checkpoint: "
        "expected one of both, as they are the same hook"
    ]
    assert review(policy, workers=workers, launcher={"command": ["mpirun"]})[0] == [], "the launcher has one of its own"


def test_what_means_nothing_is_a_warning() -> None:
    assert review({"checkpoint": SAVE, "gracePeriodSeconds": 5})[1] == (
        'spec.healthPolicy.checkpoint: means nothing with onFault "Keep"',
        'spec.healthPolicy.gracePeriodSeconds: means nothing with onFault "Keep"',
    )
    [warning] = review({"onFault": "Move", "tolerateFaulty": True})[1]
    assert "a tainted node is no fault" in warning


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
    path = "spec.healthPolicy.preFlight"
    assert review(policy)[0] == [
        f"{path}: given without launcher or interactive: expected a job whose workers wait for one of them"
    ]


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({}, "checks: null: expected 1 to 16 names of checks"),
        ({"checks": []}, "checks: a list of 0: expected 1 to 16 names of checks"),
        ({"checks": [f"c{n}" for n in range(17)]}, "checks: "),
        ({"checks": ["ipu", "Dcgm"]}, 'checks[1]: "Dcgm": expected the name of a check: lower case letters and digits'),
        ({"checks": ["ipu", "ipu"]}, 'checks[1]: "ipu": expected each check once'),
        ({"checks": ["ipu"], "timeoutSeconds": 9}, "timeoutSeconds: 9: expected a number of seconds from 10 to 3600"),
        ({"checks": ["ipu"], "timeoutSeconds": 1.5}, "timeoutSeconds: 1.5: expected a number of seconds from 10 to"),
    ],
)
def test_what_checks_cannot_be_is_refused_with_its_path(given: dict[str, Any], error: str) -> None:
    [said] = review({"preFlight": given}, launcher={"command": ["mpirun"]})[0]
    assert said.startswith(f"spec.healthPolicy.preFlight.{error}")
