"""The chart grants the tainter what the policy in its values needs, and no pod in the agents' namespace."""

from typing import Any, get_args

import pytest
import yaml
from tests.chart.helm_render import CHART, Helm, Refused, Rendered

from muster_tainter.policy.file import parse_policy
from muster_tainter.policy.needed_rights import Allow, needed_rights
from muster_tainter.policy.sections.sources import SuspendedKind
from muster_tainter.step_times.job_suspension import KINDS

EXAMPLES = CHART.parents[1] / "examples"
AGENTS, REPAIRS, TRIALS = "autopilot", "muster-repairs", "muster-trials"
LEVEL = "pod-security.kubernetes.io/enforce"
POOL = "rules: [{name: a, action: taint}]\npools: [{name: p, selector: {}, "
JOB = "{spec: {template: {spec: {}}}}"
POLICIES = {
    "built-in": "",
    "only taints": POOL + "drain: {when: completion}, budget: {tainted: 1}}]",
    "drain by rule": "rules: [{name: a, action: drain}]",
    "drain by pool": POOL + "drain: {when: now}}]",
    "drain later": POOL + "}, {name: q, selector: {}, drain: {when: after, after: 1h}}]",
    "slow pods stay": "rules: []\nsources: {stepTimes: {url: 'http://p'}}",
    "slow pods move": "rules: []\nsources: {stepTimes: {url: 'http://p', evict: true}}",
    "slow jobs stop": "rules: []\nsources: {stepTimes: {url: 'http://p', suspend: true}}",
    "slow jobs of other kinds stop": "rules: []\nsources: {stepTimes: {url: 'http://p', suspend: [RayJob, MPIJob]}}",
    "slow jobs of all kinds stop": "rules: []\nsources: {stepTimes: {url: 'http://p', suspend: [Job, TrainJob]}}",
    "annotation": POOL + "repair: {reset: {annotate: {example.com/a: b}}}}]",
    "a Job": POOL + "repair: {atOnce: 1, reboot: {job: {template: " + JOB + "}}}}]",
    "a Job there": POOL
    + "repair: {contact: {job: {template: {metadata: {namespace: muster-repairs}, "
    + JOB[1:]
    + "}}}}]",
    "a Job elsewhere": POOL + "repair: {reset: {job: {template: {metadata: {namespace: ops}, " + JOB[1:] + "}}}}]",
    "devices by rules": "rules: []\ndevices: {quarantine: rules}",
    "devices in a preview": "rules: []\ndevices: {quarantine: preview, share: 25%}",
    "devices off": "rules: []\ndevices: {quarantine: off}",
    "pvc as proof": "rules: [{name: a, action: taint, proof: {checks: [pvc]}}]",
    "pvc matched": "rules: [{name: a, match: {check: pvc}, action: taint}]",
    "pvc before the first job": POOL + "testing: {preFlight: [pciebw, pvc]}}]",
    "pvc after a job": POOL + "testing: {postFlight: [pvc]}}]",
    **{name: (EXAMPLES / f"{name}.yaml").read_text() for name in ("repair-job", "kured", "medik8s", "cluster-api")},
}


def granted(rendered: Rendered) -> set[Allow]:
    """What of these the tainter's account may do. Raises AssertionError if it may create pods or Jobs elsewhere."""
    found = set()
    for role in (each for each in rendered.objects if each["kind"] in ("Role", "ClusterRole")):
        if role["metadata"].get("labels", {}).get("app.kubernetes.io/component") != "tainter":
            continue
        namespace = role["metadata"].get("namespace")
        for rule in role["rules"]:
            made = {each for each in rule["resources"] if "create" in rule["verbs"]}
            if "pods/eviction" in made:
                found.add(Allow.DRAIN)
            if "jobs" in rule["resources"] and "patch" in rule["verbs"] and namespace is None:
                found.add(Allow.SUSPEND_JOBS)
            if "devicetaintrules" in made:
                found.add(Allow.DEVICES)
            if "jobs" in made:
                assert namespace == REPAIRS
                found.add(Allow.REPAIR_JOBS)
            if made & {"pods", "persistentvolumeclaims"}:
                assert namespace == TRIALS
                found.add(Allow.TRIALS)
    return found


@pytest.mark.parametrize("name", POLICIES)
def test_the_rights_are_those_that_the_policy_needs(helm: Helm, name: str) -> None:
    policy = POLICIES[name] or (CHART / "files/policy.yaml").read_text()
    rendered = helm.template(values={"tainter": {"policy": POLICIES[name]}})
    needed = {each.allow for each in needed_rights(parse_policy(policy, name), REPAIRS)} - {Allow.OWN}
    assert granted(rendered) == needed
    namespaces = rendered.kind("Namespace")
    assert (REPAIRS in namespaces) is (Allow.REPAIR_JOBS in needed)
    assert (TRIALS in namespaces) is (Allow.TRIALS in needed)


def test_a_policy_may_be_written_in_the_values_themselves(helm: Helm) -> None:
    policy = yaml.safe_load(POLICIES["a Job"])
    assert granted(helm.template(values={"tainter": {"policy": policy}})) == {Allow.REPAIR_JOBS}


def test_the_built_in_policy_needs_none_of_them(helm: Helm) -> None:
    assert granted(helm.template()) == set()


@pytest.mark.parametrize("name", ["repair-job", "kured", "cluster-api"])
def test_the_jobs_of_the_examples_run_in_the_namespace_of_repairs(helm: Helm, name: str) -> None:
    rendered = helm.template("--set-file", f"tainter.policy={EXAMPLES / name}.yaml")
    assert Allow.REPAIR_JOBS in granted(rendered)
    assert rendered.one("Namespace", REPAIRS)["metadata"]["labels"][LEVEL] == "privileged"
    assert rendered.settings("muster-tainter", "tainter.yaml")["repair_namespace"] == REPAIRS
    for pool in parse_policy((EXAMPLES / f"{name}.yaml").read_text(), name).pools:
        for remedy in (pool.repair.of(each) for each in ("reset", "reboot", "replace") if pool.repair is not None):
            assert remedy is None or remedy.job is None or "namespace" not in remedy.job.template.get("metadata", {})  # type: ignore[operator]


@pytest.mark.parametrize(
    ("checks", "allowed"),
    [({}, False), ({"pvc": {"period": "1d"}}, True), ({"pvc": {"enabled": False}}, False), ({"ping": {}}, False)],
)
def test_a_check_of_volumes_in_the_values_brings_the_right_for_trials(
    helm: Helm, checks: dict[str, Any], allowed: bool
) -> None:
    rendered = helm.template(values={"checks": checks})
    assert (Allow.TRIALS in granted(rendered)) is allowed
    settings = rendered.settings("muster-tainter", "tainter.yaml")
    assert settings.get("trials_namespace") == (TRIALS if allowed else None)


def test_no_privileged_pod_is_allowed_where_trials_run(helm: Helm) -> None:
    rendered = helm.template(values={"tainter": {"allow": {"trials": True}}})
    assert rendered.one("Namespace", TRIALS)["metadata"]["labels"][LEVEL] == "baseline"


@pytest.mark.parametrize("given", [[], ["JobSet"], list(get_args(SuspendedKind))])
def test_the_kinds_of_jobs_that_the_policy_suspends_may_be_changed(helm: Helm, given: list[str]) -> None:
    policy = {"rules": [], "sources": {"stepTimes": {"url": "http://p", "suspend": given}}}
    by_name = {kind.name: kind for kind in KINDS.values()}
    wanted = {(by_name[name].group, by_name[name].plural) for name in given}
    read = {(by_name[each].group, by_name[each].plural) for name in given for each in by_name[name].through}
    groups = {kind.group for kind in KINDS.values()}
    for allowed in ("auto", False):
        rendered = helm.template(values={"tainter": {"policy": policy, "allow": {"suspendJobs": allowed}}})
        verbs: dict[str, set[tuple[str, str]]] = {"get": set(), "patch": set()}
        for rule in rendered.one("ClusterRole", "muster-tainter")["rules"]:
            for verb in verbs.keys() & set(rule["verbs"]) if rule["apiGroups"][0] in groups else ():
                verbs[verb] |= {(rule["apiGroups"][0], each) for each in rule["resources"]}
        assert verbs["patch"] == (wanted if allowed else set())
        assert verbs["get"] == ((wanted | read) if allowed else set()) | {("batch", "jobs")}


def test_a_value_overrules_the_policy(helm: Helm) -> None:
    allow = {"drain": True, "repairJobs": True, "suspendJobs": True, "trials": True, "devices": True}
    assert granted(helm.template(values={"tainter": {"allow": allow}})) == {
        Allow.DRAIN,
        Allow.REPAIR_JOBS,
        Allow.SUSPEND_JOBS,
        Allow.TRIALS,
        Allow.DEVICES,
    }
    refused = {"allow": dict.fromkeys(allow, False), "policy": POLICIES["drain by rule"]}
    assert granted(helm.template(values={"tainter": refused})) == set()


@pytest.mark.parametrize(("value", "right"), [("repairNamespace", "repairJobs"), ("trialNamespace", "trials")])
def test_the_agents_namespace_is_refused(helm: Helm, value: str, right: str) -> None:
    values = {"tainter": {"allow": {right: True}, value: {"name": AGENTS}}}
    with pytest.raises(Refused, match=rf"tainter\.{value}\.name: {AGENTS} .*: use another name"):
        helm.template(values=values)


def test_an_existing_namespace_is_used(helm: Helm) -> None:
    values = {"tainter": {"allow": {"repairJobs": True}, "repairNamespace": {"create": False, "name": "ops"}}}
    rendered = helm.template(values=values)
    assert not rendered.has("Namespace", "ops")
    assert rendered.one("Role", "muster-repairs")["metadata"]["namespace"] == "ops"
    assert rendered.settings("muster-tainter", "tainter.yaml")["repair_namespace"] == "ops"
