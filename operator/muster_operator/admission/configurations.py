"""The webhook configurations, and what happens to a write when no webhook answers.

CREATE fails closed. UPDATE is a separate entry, because removing a finalizer is an update: a job can be deleted
whatever state the operator is in. From Kubernetes 1.28 the API server recognizes such updates itself
(``matchConditions``). Older versions let an update pass without review, and the operator validates the job again before
it acts on it.

The webhook of pods must not stand in the way of pods without the annotation ``graphcore.ai/ipus``. From Kubernetes 1.28
the API server calls it for annotated pods only, and such a pod is rejected while nobody answers, as it would otherwise
run without IPUs. Older versions cannot select by annotation: there it is called for the pods of namespaces with a
label, with a short timeout, and fails open. An annotated pod that slips through then has no IPUs, and its program
fails.
"""

import base64
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from muster_kube.webhook.review import VERSIONS
from muster_operator.job.ipu_pod import ANNOTATION
from muster_operator.job.names import IPUS
from muster_operator.job.types import GROUP, PLURAL, VERSION

Configuration = dict[str, Any]
FailurePolicy = Literal["Fail", "Ignore"]

# of the published chart 1.2.0
MUTATE_PATH = "/mutate-graphcore-ai-v1alpha1-ipujob"
VALIDATE_PATH = "/validate-graphcore-ai-v1alpha1-ipujob"
POD_PATH = "/mutate-v1-pod"
MUTATING, VALIDATING = f"mipujob.{GROUP}", f"vipujob.{GROUP}"
POD_MUTATING = f"mpod.{GROUP}"
TIMEOUT_S = 30
# where other pods wait too; the webhook itself answers in milliseconds. Kubernetes recommends small timeouts for
# webhooks (Admission Webhook Good Practices)
ALL_PODS_TIMEOUT_S = 5

MATCH_CONDITIONS_MINOR = 28  # enabled by default from this version
NAMESPACE_LABEL_MINOR = 21  # every namespace has its name as a label from this version
NAMESPACE_LABEL = "kubernetes.io/metadata.name"
# review only an update that changes the spec of a job that is not being deleted
CONDITIONS = (
    {"name": "is-not-being-deleted", "expression": "!has(object.metadata.deletionTimestamp)"},
    {
        "name": "spec-has-changed",
        "expression": "!has(object.spec) || !has(oldObject.spec) || object.spec != oldObject.spec",
    },
)
POD_CONDITION = {
    "name": "asks-for-ipus",
    "expression": f"has(object.metadata.annotations) && '{ANNOTATION}' in object.metadata.annotations",
}
# of namespaces whose pods may ask for IPUs, before 1.28
OPT_IN = {"key": IPUS, "operator": "In", "values": ["enabled"]}


@dataclass(frozen=True)
class WebhookAddress:
    """The address of the webhooks: a Service, or ``url`` (https://HOST:PORT)."""

    namespace: str = ""
    service: str = ""
    port: int = 443
    url: str = ""

    def client(self, path: str, bundle: bytes) -> Configuration:
        """bundle: PEM; empty if another component (such as cert-manager) writes it."""
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
    ipu_pods: bool = False,
) -> tuple[Configuration, Configuration]:
    """The MutatingWebhookConfiguration and the ValidatingWebhookConfiguration, both called ``name``.

    minor: of the API server, 1.``minor``. scope: only jobs of these namespaces are reviewed; empty: all. Before 1.21
    namespaces cannot be selected by name, so the configurations match all of them and the webhooks allow the others.
    timeout_s: 1 to 30; where the webhook of pods is called for other pods too, at most ALL_PODS_TIMEOUT_S. ipu_pods:
    pods with IPUs are reviewed too.
    """

    chosen = [{"key": NAMESPACE_LABEL, "operator": "In", "values": sorted(scope)}] if scope else []
    if minor < NAMESPACE_LABEL_MINOR:
        chosen = []

    def common(path: str) -> Configuration:
        return {
            "admissionReviewVersions": list(VERSIONS),
            "sideEffects": "None",
            "matchPolicy": "Equivalent",
            "timeoutSeconds": timeout_s,
            "clientConfig": called.client(path, bundle),
        }

    def entries(base: str, path: str, extra: Configuration) -> list[Configuration]:
        of_jobs = common(path) | extra
        if chosen:
            of_jobs["namespaceSelector"] = {"matchExpressions": chosen}
        create = of_jobs | {"name": base, "rules": [_rule("CREATE")], "failurePolicy": failure_policy}
        update = of_jobs | {"name": f"update.{base}", "rules": [_rule("UPDATE")], "failurePolicy": "Ignore"}
        if minor >= MATCH_CONDITIONS_MINOR:
            update |= {"failurePolicy": failure_policy, "matchConditions": [dict(each) for each in CONDITIONS]}
        return [create, update]

    def of_pods() -> Configuration:
        rule = {"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"], "operations": ["CREATE"]}
        entry = common(POD_PATH) | {
            "name": POD_MUTATING,
            "reinvocationPolicy": "IfNeeded",
            "rules": [rule | {"scope": "Namespaced"}],
            "failurePolicy": "Ignore",
        }
        if minor >= MATCH_CONDITIONS_MINOR:
            selected = [*chosen]
            entry |= {"failurePolicy": failure_policy, "matchConditions": [dict(POD_CONDITION)]}
        else:
            selected = [*chosen, OPT_IN]
            entry |= {"timeoutSeconds": min(timeout_s, ALL_PODS_TIMEOUT_S)}
        return entry | ({"namespaceSelector": {"matchExpressions": selected}} if selected else {})

    metadata: Configuration = {"name": name}
    if labels:
        metadata["labels"] = dict(labels)
    if annotations:
        metadata["annotations"] = dict(annotations)
    api = "admissionregistration.k8s.io/v1"
    mutating = entries(MUTATING, MUTATE_PATH, {"reinvocationPolicy": "IfNeeded"}) + ([of_pods()] if ipu_pods else [])
    validating = entries(VALIDATING, VALIDATE_PATH, {})
    return (
        {"apiVersion": api, "kind": "MutatingWebhookConfiguration", "metadata": dict(metadata), "webhooks": mutating},
        {"apiVersion": api, "kind": "ValidatingWebhookConfiguration", "metadata": metadata, "webhooks": validating},
    )


def _rule(operation: str) -> Configuration:
    # subresources are left out: a status write is never delayed, and the schema bounds the scale
    return {
        "apiGroups": [GROUP],
        "apiVersions": [VERSION],
        "resources": [PLURAL],
        "operations": [operation],
        "scope": "Namespaced",
    }
