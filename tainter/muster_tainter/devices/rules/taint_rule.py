"""DeviceTaintRules of Muster: one for each device of a driver, with a name that follows from the node and the device.

The label and the annotations say that a rule is Muster's, and for which node and component; others are never
touched. A selector always has driver, pool and device: one without any would taint every device of the cluster
(kubernetes/kubernetes 141620).
"""

import hashlib
import re
from dataclasses import dataclass
from typing import Any

import msgspec

from muster_kube.api.objects import Api, ManagedFields, Metadata
from muster_tainter.faults.device_isolation import device_key
from muster_tainter.faults.record.node_record import OurTaint

LABEL = "muster.dev/device-quarantine"
SELECTOR = f"{LABEL}=true"
NODE, COMPONENT, WHY = "muster.dev/node", "muster.dev/component", "muster.dev/why"
PREVIEW_EFFECT = "None"
_NAME_LIMIT = 180  # characters of the node's name, of an object's 253
_NOT_IN_A_NAME = re.compile(r"[^a-z0-9-]")


class DeviceSelector(Api, frozen=True):
    """device_class_name, selectors: of v1alpha3 before Kubernetes 1.35; Muster never sets them."""

    driver: str = ""
    pool: str = ""
    device: str = ""
    device_class_name: str = ""
    selectors: tuple[msgspec.Raw, ...] = ()


class DeviceTaint(Api, frozen=True):
    key: str = ""
    value: str = ""
    effect: str = ""


class RuleSpec(Api, frozen=True):
    device_selector: DeviceSelector | None = None
    taint: DeviceTaint = DeviceTaint()


class DeviceTaintRule(Api, frozen=True):
    metadata: Metadata
    spec: RuleSpec = RuleSpec()

    @property
    def node(self) -> str:
        """Empty for a rule that is not Muster's."""
        meta = self.metadata
        if meta.labels.get(LABEL) != "true" or device_key(meta.annotations.get(COMPONENT, "")) is None:
            return ""
        return meta.annotations.get(NODE, "")

    @property
    def component(self) -> str:
        return self.metadata.annotations.get(COMPONENT, "")


class ManagedRuleMetadata(Metadata, frozen=True):
    managed_fields: tuple[ManagedFields, ...] = ()


class ManagedRule(Api, frozen=True):
    """A rule with its managers, for a single get."""

    metadata: ManagedRuleMetadata
    spec: RuleSpec = RuleSpec()


class _Fields(msgspec.Struct):
    spec: dict[str, object] = msgspec.field(default_factory=dict, name="f:spec")


_fields = msgspec.json.Decoder(_Fields)


def spec_managers(rule: ManagedRule) -> tuple[str, ...]:
    """The field managers of its spec."""
    found = []
    for entry in rule.metadata.managed_fields:
        try:
            if _fields.decode(entry.fields).spec:
                found.append(entry.manager)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            continue
    return tuple(found)


def slim_rule(found: DeviceTaintRule) -> DeviceTaintRule:
    """The stored part."""
    meta = found.metadata
    annotations = {key: meta.annotations[key] for key in (NODE, COMPONENT) if key in meta.annotations}
    labels = {LABEL: meta.labels[LABEL]} if LABEL in meta.labels else {}
    slim = Metadata(
        name=meta.name,
        uid=meta.uid,
        resource_version=meta.resource_version,
        creation_timestamp=meta.creation_timestamp,
        labels=labels,
        annotations=annotations,
    )
    return msgspec.structs.replace(found, metadata=slim)


@dataclass(frozen=True)
class WantedRule:
    """A rule that a node's record requires. taint: with the effect for the device; why: the fault, in one line."""

    node: str
    component: str
    driver: str
    pool: str
    device: str
    taint: OurTaint
    why: str = ""

    @property
    def name(self) -> str:
        """Deterministic, so that the next leader finds the rule that this one was about to write."""
        what = "\0".join((self.node, self.driver, self.pool, self.device))
        digest = hashlib.sha256(what.encode("utf-8", "surrogatepass")).hexdigest()[:12]
        node = _NOT_IN_A_NAME.sub("-", self.node[:_NAME_LIMIT].lower()).strip("-")
        return f"muster-{node}-{digest}" if node else f"muster-{digest}"

    @property
    def spec(self) -> RuleSpec:
        return RuleSpec(
            device_selector=DeviceSelector(driver=self.driver, pool=self.pool, device=self.device),
            taint=DeviceTaint(key=self.taint.key, value=self.taint.value, effect=self.taint.effect),
        )

    def body(self, api_version: str) -> dict[str, Any]:
        """The object to create. Raises ValueError for a selector that is not complete."""
        if not (self.driver and self.pool and self.device):
            raise ValueError(f"{self.component}: a rule without driver, pool and device would taint other devices")
        return {
            "apiVersion": f"resource.k8s.io/{api_version}",
            "kind": "DeviceTaintRule",
            "metadata": {
                "name": self.name,
                "labels": {LABEL: "true"},
                "annotations": {NODE: self.node, COMPONENT: self.component, WHY: self.why},
            },
            "spec": self.spec,
        }

    def is_met_by(self, rule: DeviceTaintRule) -> bool:
        return rule.spec == self.spec
