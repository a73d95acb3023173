"""The webhook configurations: what is asked for, and what becomes of a write when nobody answers (behaviour 15)."""

import base64
from typing import Any

import pytest

from muster_operator.admission.configurations import (
    MUTATE_PATH,
    POD_PATH,
    VALIDATE_PATH,
    WebhookAddress,
    webhook_configurations,
)

SERVICE = WebhookAddress(namespace="muster", service="webhooks")


def entries(**settings: Any) -> list[dict[str, Any]]:
    made = webhook_configurations("muster-ipujob", settings.pop("called", SERVICE), **({"minor": 30} | settings))
    return [webhook for configuration in made for webhook in configuration["webhooks"]]


def test_both_configurations_ask_the_published_paths() -> None:
    both = webhook_configurations("muster-ipujob", SERVICE, minor=30, labels={"a": "b"}, annotations={"c": "d"})
    assert [each["kind"] for each in both] == ["MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"]
    for configuration, path, base in zip(
        both, (MUTATE_PATH, VALIDATE_PATH), ("mipujob.graphcore.ai", "vipujob.graphcore.ai"), strict=True
    ):
        assert configuration["apiVersion"] == "admissionregistration.k8s.io/v1"
        assert configuration["metadata"] == {"name": "muster-ipujob", "labels": {"a": "b"}, "annotations": {"c": "d"}}
        assert [each["name"] for each in configuration["webhooks"]] == [base, f"update.{base}"]
        for webhook in configuration["webhooks"]:
            service = {"namespace": "muster", "name": "webhooks", "port": 443, "path": path}
            assert webhook["clientConfig"] == {"service": service}
            assert webhook["admissionReviewVersions"] == ["v1", "v1beta1"]
            assert (webhook["sideEffects"], webhook["timeoutSeconds"]) == ("None", 30)


def test_subresources_are_never_asked_about() -> None:
    for webhook in entries():
        (rule,) = webhook["rules"]
        assert (rule["apiGroups"], rule["apiVersions"], rule["resources"]) == (
            ["graphcore.ai"],
            ["v1alpha1"],
            ["ipujobs"],
        )
        assert rule["scope"] == "Namespaced"


@pytest.mark.parametrize(
    ("minor", "wanted", "create", "update"),
    [
        (20, "Fail", "Fail", "Ignore"),
        (27, "Fail", "Fail", "Ignore"),
        (28, "Fail", "Fail", "Fail"),
        (34, "Fail", "Fail", "Fail"),
        (34, "Ignore", "Ignore", "Ignore"),
        (20, "Ignore", "Ignore", "Ignore"),
    ],
)
def test_15_an_update_is_refused_only_where_finalisers_can_be_told_apart(
    minor: int, wanted: str, create: str, update: str
) -> None:
    """Behaviour 15."""
    for webhook in entries(minor=minor, failure_policy=wanted):
        (operation,) = webhook["rules"][0]["operations"]
        assert webhook["failurePolicy"] == {"CREATE": create, "UPDATE": update}[operation]
        assert ("matchConditions" in webhook) == (operation == "UPDATE" and minor >= 28)


def test_15_conditions_pass_finalisers_labels_and_whatever_is_being_deleted() -> None:
    """Behaviour 15."""
    (_, update, _, other) = entries()
    assert update["matchConditions"] == other["matchConditions"]
    going, changed = (each["expression"] for each in update["matchConditions"])
    assert going == "!has(object.metadata.deletionTimestamp)"
    assert "object.spec != oldObject.spec" in changed


@pytest.mark.parametrize(("minor", "wanted"), [(20, "Fail"), (27, "Fail"), (28, "Fail"), (36, "Fail"), (36, "Ignore")])
@pytest.mark.parametrize("scope", [(), ("team",)])
def test_no_pod_without_the_annotation_is_held_up(minor: int, wanted: str, scope: tuple[str, ...]) -> None:
    (*others, entry) = webhook_configurations(
        "n",
        SERVICE,
        minor=minor,
        scope=scope,
        failure_policy=wanted,
        ipu_pods=True,  # type: ignore[arg-type]
    )[0]["webhooks"]
    assert "pods" not in [resource for each in others for rule in each["rules"] for resource in rule["resources"]]
    assert entry["clientConfig"]["service"]["path"] == POD_PATH
    assert [(rule["resources"], rule["operations"]) for rule in entry["rules"]] == [(["pods"], ["CREATE"])]
    selected = {each["key"] for each in entry.get("namespaceSelector", {}).get("matchExpressions", ())}
    assert ("kubernetes.io/metadata.name" in selected) == bool(scope and minor >= 21)
    if minor >= 28:  # the API server itself asks for annotated pods only
        (condition,) = entry["matchConditions"]
        assert "'graphcore.ai/ipus' in object.metadata.annotations" in condition["expression"]
        assert (entry["failurePolicy"], entry["timeoutSeconds"]) == (wanted, 30)
    else:  # other pods wait for the answer too
        assert "muster.dev/ipus" in selected
        assert (entry["failurePolicy"], entry["timeoutSeconds"]) == ("Ignore", 5)


def test_pods_are_asked_about_only_where_they_may_have_ipus() -> None:
    assert {tuple(rule["resources"]) for each in entries() for rule in each["rules"]} == {("ipujobs",)}


def test_only_the_mutating_one_is_asked_again_after_others() -> None:
    mutating, validating = (
        configuration["webhooks"][0] for configuration in webhook_configurations("n", SERVICE, minor=30)
    )
    assert mutating["reinvocationPolicy"] == "IfNeeded"
    assert "reinvocationPolicy" not in validating


def test_an_address_and_a_bundle() -> None:
    called = WebhookAddress(url="https://127.0.0.1:9443")
    for webhook in entries(called=called, bundle=b"PEM", timeout_s=5):
        client = webhook["clientConfig"]
        assert client["url"].startswith("https://127.0.0.1:9443/")
        assert base64.b64decode(client["caBundle"]) == b"PEM"
        assert "service" not in client
        assert webhook["timeoutSeconds"] == 5


def test_the_scope_is_told_to_servers_that_know_namespaces_by_name() -> None:
    for webhook in entries(scope=["b", "a"], minor=21):
        (chosen,) = webhook["namespaceSelector"]["matchExpressions"]
        assert chosen == {"key": "kubernetes.io/metadata.name", "operator": "In", "values": ["a", "b"]}
    assert all("namespaceSelector" not in webhook for webhook in entries(scope=["a"], minor=20))
    assert all("namespaceSelector" not in webhook for webhook in entries())
