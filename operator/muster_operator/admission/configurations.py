"""What the API server is told to ask, and what becomes of a write when nobody answers.

CREATE fails closed. UPDATE is an entry of its own, because taking a finaliser off is one: whatever state the operator
is in, a job can be deleted. From 1.28 on the API server can tell such an update itself (``matchConditions``); an older
one lets an update through that nobody judged, and the operator judges the job again before it acts on it.
"""

import base64
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from muster_kube.webhook.review import VERSIONS
from muster_operator.job.types import GROUP, PLURAL, VERSION

Configuration = dict[str, Any]
FailurePolicy = Literal["Fail", "Ignore"]

# of the published chart 1.2.0
MUTATE_PATH = "/mutate-graphcore-ai-v1alpha1-ipujob"
VALIDATE_PATH = "/validate-graphcore-ai-v1alpha1-ipujob"
MUTATING, VALIDATING = f"mipujob.{GROUP}", f"vipujob.{GROUP}"
TIMEOUT_S = 30

MATCH_CONDITIONS_MINOR = 28  # on by default from there
NAMESPACE_LABEL_MINOR = 21  # every namespace carries its name as a label from there
NAMESPACE_LABEL = "kubernetes.io/metadata.name"
# Only a changed spec of a job that stays is to be judged
CONDITIONS = (
    {"name": "is-not-being-deleted", "expression": "!has(object.metadata.deletionTimestamp)"},
    {
        "name": "spec-has-changed",
        "expression": "!has(object.spec) || !has(oldObject.spec) || object.spec != oldObject.spec",
    },
)


@dataclass(frozen=True)
class WebhookAddress:
    """Where the webhooks are: a Service, or, with ``url`` (https://HOST:PORT), an address."""

    namespace: str = ""
    service: str = ""
    port: int = 443
    url: str = ""

    def client(self, path: str, bundle: bytes) -> Configuration:
        """bundle: PEM; empty where somebody else writes it."""
        found: Configuration = {"caBundle": base64.b64encode(bundle).decode()} if bundle else {}
        if self.url:
            return found | {"url": self.url + path}
        service = {"namespace": self.namespace, "name": self.service, "port": self.port, "path": path}
        return found | {"service": service}


def webhook_configurations(
    name: str,
    called: WebhookAddress,
    *,
    minor: int,
    bundle: bytes = b"",
    scope: Collection[str] = (),
    failure_policy: FailurePolicy = "Fail",
    timeout_s: int = TIMEOUT_S,
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
) -> tuple[Configuration, Configuration]:
    """The MutatingWebhookConfiguration and the ValidatingWebhookConfiguration, both called ``name``.

    minor: of the API server, 1.``minor``. scope: the only namespaces whose jobs are judged; empty: all. Before 1.21
    namespaces cannot be told by name, so there all are asked for, and the webhooks let the others' pass. timeout_s: 1
    to 30.
    """

    def entries(base: str, path: str, extra: Configuration) -> list[Configuration]:
        common: Configuration = {
            "admissionReviewVersions": list(VERSIONS),
            "sideEffects": "None",
            "matchPolicy": "Equivalent",
            "timeoutSeconds": timeout_s,
            "clientConfig": called.client(path, bundle),
            **extra,
        }
        if scope and minor >= NAMESPACE_LABEL_MINOR:
            chosen = {"key": NAMESPACE_LABEL, "operator": "In", "values": sorted(scope)}
            common["namespaceSelector"] = {"matchExpressions": [chosen]}
        create = common | {"name": base, "rules": [_rule("CREATE")], "failurePolicy": failure_policy}
        update = common | {"name": f"update.{base}", "rules": [_rule("UPDATE")], "failurePolicy": "Ignore"}
        if minor >= MATCH_CONDITIONS_MINOR:
            update |= {"failurePolicy": failure_policy, "matchConditions": [dict(each) for each in CONDITIONS]}
        return [create, update]

    metadata: Configuration = {"name": name}
    if labels:
        metadata["labels"] = dict(labels)
    if annotations:
        metadata["annotations"] = dict(annotations)
    api = "admissionregistration.k8s.io/v1"
    mutating = entries(MUTATING, MUTATE_PATH, {"reinvocationPolicy": "IfNeeded"})
    validating = entries(VALIDATING, VALIDATE_PATH, {})
    return (
        {"apiVersion": api, "kind": "MutatingWebhookConfiguration", "metadata": dict(metadata), "webhooks": mutating},
        {"apiVersion": api, "kind": "ValidatingWebhookConfiguration", "metadata": metadata, "webhooks": validating},
    )


def _rule(operation: str) -> Configuration:
    # subresources are not named: a status is never held up, and a scale is bounded by the schema
    return {
        "apiGroups": [GROUP],
        "apiVersions": [VERSION],
        "resources": [PLURAL],
        "operations": [operation],
        "scope": "Namespaced",
    }
