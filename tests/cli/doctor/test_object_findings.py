"""CRDs, certificates, webhooks and rights, each held against what this release needs."""

import base64
import datetime
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
import yaml
from tests.wording.facts import missing_facts

from muster_checks.base.vocabulary import Verdict
from muster_cli.doctor.facts import ApiResource, CrdFacts, DataMap, EndpointSlice, WebhookConfiguration
from muster_cli.doctor.findings import DoctorFinding, ReadFailure
from muster_cli.doctor.judges import crds, rights, webhooks
from muster_cli.doctor.judges.parts import find_parts
from muster_kube.api.objects import Metadata
from muster_kube.webhook.key_pairs import DAY_S, VALID_S, KeyPairSet, make_key_pair
from muster_sandbox.controlplane.install import crd_directory
from muster_tainter.policy.file import parse_policy
from muster_tainter.policy.needed_rights import needed_rights

NOW = 1_800_000_000.0
UNSEEN = ReadFailure("/x", "Forbidden: no", forbidden=True)


def body() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((crd_directory() / "muster.dev_nodehealths.yaml").read_text())
    return found


def definition(given: Mapping[str, Any]) -> CrdFacts:
    return msgspec.json.decode(msgspec.json.encode(given), type=CrdFacts)


NAME = "nodehealths.muster.dev"


def of_crd(given: CrdFacts | ReadFailure | None) -> list[DoctorFinding]:
    return crds.judge({NAME: definition(body())}, {NAME: given})


def test_a_crd_of_this_release_is_fine() -> None:
    assert [each.verdict for each in of_crd(definition(body()))] == [Verdict.PASS]


def test_a_description_makes_no_crd_old() -> None:
    other = body()
    other["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["description"] = "other words"
    assert [each.verdict for each in of_crd(definition(other))] == [Verdict.PASS]


def test_a_missing_crd_is_wrong() -> None:
    (found,) = of_crd(None)
    assert found.verdict is Verdict.FAIL
    assert not missing_facts(found.what, NAME)
    assert "helm/muster/crds" in found.mend
    assert [each.verdict for each in of_crd(UNSEEN)] == [Verdict.UNKNOWN]


def test_an_older_crd_names_the_fields_that_it_lacks() -> None:
    other = body()
    del other["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"]["properties"]["observedAt"]
    (found,) = of_crd(definition(other))
    assert found.verdict is Verdict.FAIL
    assert "status.observedAt" in found.what


def test_a_newer_crd_asks_for_a_newer_command() -> None:
    other = body()
    status = other["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"]["properties"]
    status["mood"] = {"type": "string"}
    (found,) = of_crd(definition(other))
    assert found.verdict is Verdict.WARN
    assert "status.mood" in found.what


def test_a_crd_whose_version_is_not_served_or_whose_names_are_taken_is_wrong() -> None:
    other = body()
    other["spec"]["versions"][0]["served"] = False
    (unserved,) = of_crd(definition(other))
    assert unserved.verdict is Verdict.FAIL
    assert not missing_facts(unserved.what, NAME, "v1alpha1")
    other = body()
    taken = {"type": "NamesAccepted", "status": "False", "message": "taken"}
    other["status"] = {"conditions": [taken], "storedVersions": ["v1alpha0"]}
    assert [each.verdict for each in of_crd(definition(other))] == [Verdict.FAIL, Verdict.WARN]


# certificates and webhooks

KEY = "ValidatingWebhookConfiguration/muster-own-node"


def configuration(bundle: bytes, *, policy: str = "Ignore", service: bool = True) -> WebhookConfiguration:
    place = {"namespace": "autopilot", "name": "muster-own-node"} if service else None
    config = {"caBundle": base64.b64encode(bundle).decode(), "service": place, "url": "https://x"}
    hook = {"name": "w", "failurePolicy": policy, "clientConfig": config}
    return msgspec.convert({"metadata": {"name": "muster-own-node"}, "webhooks": [hook]}, type=WebhookConfiguration)


def secret(kept: KeyPairSet) -> DataMap:
    data = {name: base64.b64encode(value).decode() for name, value in kept.data().items() if value is not None}
    return DataMap(metadata=Metadata(name="muster-own-node"), data=data)


def slices(*ready: bool) -> list[EndpointSlice]:
    body = {"metadata": {"name": "s"}, "endpoints": [{"conditions": {"ready": each}} for each in ready]}
    return [msgspec.convert(body, type=EndpointSlice)]


KEPT = KeyPairSet(make_key_pair(["a.svc"], NOW))


def of_hook(
    found: WebhookConfiguration, kept: DataMap | ReadFailure | None = None, *, ready: Any = None, now: float = NOW
) -> list[DoctorFinding]:
    there = slices(True) if ready is None else ready
    behind = webhooks.WebhookBackend("autopilot", kept if kept is not None else secret(KEPT), there)
    return [
        each for each in webhooks.judge({KEY: found}, {KEY: behind}, [KEY], now) if each.verdict is not Verdict.PASS
    ]


def test_a_webhook_that_is_trusted_and_answered_is_fine() -> None:
    assert of_hook(configuration(KEPT.bundle)) == []


def test_expired_certificate_is_reported_with_its_date() -> None:
    found = of_hook(configuration(KEPT.bundle), now=NOW + VALID_S + 10)
    ended = datetime.datetime.fromtimestamp(NOW + VALID_S, datetime.UTC).strftime("%Y-%m-%d")
    assert [each.verdict for each in found] == [Verdict.FAIL, Verdict.FAIL]
    assert all(ended in each.what for each in found)
    command = "kubectl -n autopilot delete secret muster-own-node"
    assert found[0].mend.startswith(command)


def test_certificate_that_expires_soon_is_a_warning() -> None:
    found = of_hook(configuration(KEPT.bundle), now=NOW + VALID_S - 7 * DAY_S)
    assert {each.verdict for each in found} == {Verdict.WARN}


def test_bundle_that_does_not_trust_the_certificate_fails() -> None:
    (found,) = of_hook(configuration(make_key_pair(["b.svc"], NOW).authority))
    assert (found.area, found.verdict) == ("certificates", Verdict.FAIL)
    assert not missing_facts(found.what, "Secret autopilot/muster-own-node", "caBundle")


def test_a_bundle_that_is_empty_or_nonsense_is_wrong() -> None:
    for bundle in (b"", b"nonsense"):
        found = of_hook(configuration(bundle))[0]
        assert (found.area, found.verdict) == ("certificates", Verdict.FAIL)
        assert not missing_facts(found.what, KEY, "caBundle")


def test_a_secret_that_is_no_certificate_is_wrong_and_one_that_may_not_be_read_is_unknown() -> None:
    nonsense = DataMap(metadata=Metadata(name="s"), data={"tls.crt": "bm9uZQ=="})
    found = of_hook(configuration(KEPT.bundle), nonsense)[0]
    assert found.verdict is Verdict.FAIL
    assert not missing_facts(found.what, "Secret autopilot/muster-own-node", "tls.crt")
    assert [each.verdict for each in of_hook(configuration(KEPT.bundle), UNSEEN)] == [Verdict.UNKNOWN]


@pytest.mark.parametrize(("policy", "verdict"), [("Fail", Verdict.FAIL), ("Ignore", Verdict.WARN)])
def test_a_webhook_without_endpoints_is_as_bad_as_its_failure_policy(policy: str, verdict: Verdict) -> None:
    (found,) = of_hook(configuration(KEPT.bundle, policy=policy), ready=slices(False))
    assert found.verdict is verdict
    assert not missing_facts(found.what, KEY, "Service autopilot/muster-own-node")


def test_a_webhook_that_is_called_by_an_address_has_no_endpoints_to_look_at() -> None:
    assert of_hook(configuration(KEPT.bundle, service=False), ready=[]) == []


def test_missing_webhook_configuration_is_reported() -> None:
    (found,) = webhooks.judge({}, {}, [KEY], NOW)
    assert (found.area, found.verdict) == ("webhooks", Verdict.FAIL)
    assert not missing_facts(found.what, KEY)


# rights

PARTS = find_parts([], [("muster", "muster-tainter"), ("muster", "muster-agent")])
RIGHTS = rights.list_rights(PARTS)


def test_rights_that_are_all_there_are_counted() -> None:
    (found,) = rights.judge(RIGHTS, [])
    assert found.verdict is Verdict.PASS
    assert not missing_facts(found.what, "2 service accounts", f"{len(RIGHTS)} rights")


def test_a_right_that_is_missing_is_named_with_the_line_that_tries_it() -> None:
    gone = [each for each in RIGHTS if (each.part, each.resource, each.verb) == ("tainter", "nodes", "patch")]
    (found,) = rights.judge(RIGHTS, gone)
    assert found.verdict is Verdict.FAIL
    assert not missing_facts(found.what, "tainter", "muster:muster-tainter", "patch nodes")
    command = "kubectl auth can-i patch nodes --as system:serviceaccount:muster:muster-tainter"
    assert command in found.mend


def test_what_a_value_turned_off_is_no_fault_and_half_of_it_is() -> None:
    value = "tainter.allow.repairJobs=false"
    off = [each for each in RIGHTS if each.unless == value]
    (found,) = rights.judge(RIGHTS, off)
    assert found.verdict is Verdict.PASS
    assert value in found.what
    assert rights.judge(RIGHTS, off[:1])[0].verdict is Verdict.FAIL


POLICY = """
rules: [{name: a, action: drain}]
pools:
  - name: p
    selector: {}
    repair:
      reset: {job: {template: {spec: {template: {spec: {}}}}}}
      reboot: {job: {template: {metadata: {namespace: ops}, spec: {template: {spec: {}}}}}}
      replace: {create: {manifest: {apiVersion: example.com/v1, kind: Remedy, metadata: {namespace: ops}}}}
"""
NEEDED = list(needed_rights(parse_policy(POLICY, "p"), "muster-repairs"))


@pytest.mark.parametrize(
    ("value", "where"),
    [("drain", "rules[0] (a).action"), ("repairJobs", "pools[0] (p).repair.reset.job")],
)
def test_what_a_value_turned_off_is_a_fault_if_the_policy_in_force_needs_it(value: str, where: str) -> None:
    off = [each for each in RIGHTS if each.unless == f"tainter.allow.{value}=false"]
    (found,) = rights.judge(RIGHTS, off, needed=NEEDED)
    assert found.verdict is Verdict.FAIL
    assert not missing_facts(found.what, where, off[0].resource)
    assert f"tainter.allow.{value}=true" in found.mend


def test_rights_that_the_policy_does_not_need_may_be_off_beside_those_that_it_needs() -> None:
    off = [each for each in RIGHTS if each.unless == "tainter.allow.trials=false"]
    assert off
    assert rights.judge(RIGHTS, off, needed=NEEDED)[0].verdict is Verdict.PASS


def test_jobs_of_repairs_and_trials_are_looked_for_in_their_own_namespaces() -> None:
    places = {"repairs": "muster-repairs", "trials": "muster-trials"}
    found = {
        (each.namespace, each.resource)
        for each in rights.list_rights(PARTS, places=places)
        if each.verb == "create" and each.resource in ("jobs", "persistentvolumeclaims")
    }
    assert found == {("muster-repairs", "jobs"), ("muster-trials", "persistentvolumeclaims")}


def test_a_policys_own_objects_need_a_role_of_a_person() -> None:
    kinds = {
        ("batch/v1", "Job"): ApiResource("jobs", "Job", namespaced=True),
        ("example.com/v1", "Remedy"): ApiResource("remedies", "Remedy", namespaced=True),
    }
    tainter = next(each for each in PARTS if each.kind == "tainter")
    more = rights.policy_rights(tainter, NEEDED, "muster-repairs", kinds)
    assert {(each.namespace, each.group, each.resource) for each in more} == {
        ("ops", "batch", "jobs"),
        ("ops", "example.com", "remedies"),
    }
    found = rights.judge([*RIGHTS, *more], more, needed=NEEDED)
    assert [each.verdict for each in found] == [Verdict.FAIL, Verdict.FAIL]
    assert {where for each in found for where in ("reboot.job", "replace.create") if where in each.what} == {
        "reboot.job",
        "replace.create",
    }


def test_a_value_is_off_although_part_of_it_is_granted_in_the_whole_cluster() -> None:
    """The tainter reads pods everywhere, and so those of trials."""
    off = [each for each in RIGHTS if each.unless == "tainter.allow.trials=false"]
    lacking = [each for each in off if each.resource != "pods" or each.verb not in ("get", "list", "watch")]
    assert len(lacking) < len(off)
    assert rights.judge(RIGHTS, lacking)[0].verdict is Verdict.PASS


OPERATOR = {
    "metadata": {
        "name": "gc-ipu-operator-controller-manager",
        "namespace": "default",
        "labels": {"app.kubernetes.io/component": "operator"},
    }
}


def test_the_operators_rights_bear_the_names_of_its_release() -> None:
    from muster_cli.doctor.facts import Workload

    parts = find_parts([msgspec.convert(OPERATOR, type=Workload)], [])
    named = {each.name for each in rights.list_rights(parts) if each.name}
    assert named == {"gc-ipu-operator-webhook", "muster-operator", "ipu-partitions-tracker"}


def test_an_operator_with_a_scope_needs_its_rights_in_these_namespaces_only() -> None:
    from muster_cli.doctor.facts import Workload

    parts = find_parts([msgspec.convert(OPERATOR, type=Workload)], [])
    pods = [each for each in rights.list_rights(parts, scope=["a", "b"]) if each.resource == "pods/exec"]
    assert [each.namespace for each in pods] == ["a", "b"]
    everywhere = [each for each in rights.list_rights(parts) if each.resource == "pods/exec"]
    assert [each.namespace for each in everywhere] == [""]


def test_missing_right_to_review_access_is_reported_once() -> None:
    (found,) = rights.judge(RIGHTS, [], UNSEEN)
    assert found.verdict is Verdict.UNKNOWN


def test_no_right_that_doctor_asks_for_depends_on_the_name_of_the_release() -> None:
    names = {name for rules in rights.load_rules().values() for rule in rules for name in rule.names}
    assert "WEBHOOK" in names
    assert not {name for name in names if name.startswith("gc-")}
