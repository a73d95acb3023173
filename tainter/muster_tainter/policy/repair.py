"""The models of a pool's ``drain`` and ``repair``, and of the quarantine of IPUs, in policy.yaml.

The object of a repair is a template: variables such as ``${node}`` are replaced when the repair begins, only inside
text values of the parsed manifest, never in its source, and only by values that match :data:`SAFE`. So no value can end
the text that contains it, add an option, or have a meaning in a shell.
"""

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, JsonValue, field_validator, model_validator

from muster_checks.base.vocabulary import FaultClass
from muster_tainter.policy import label_syntax
from muster_tainter.policy.sections.heavy_checks import AtOnce, Duration, Nodes
from muster_tainter.policy.strict_model import StrictModel

# mildest first: a later one also fixes what an earlier one would
REPAIRED: tuple[FaultClass, ...] = (FaultClass.RESET, FaultClass.REBOOT, FaultClass.REPLACE, FaultClass.CONTACT)
VARIABLES = ("node", "class", "check", "component", "device", "reason", "attempt")
SAFE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@+=-]{0,252}")
TEMPLATE_LIMIT = 64 << 10  # bytes as JSON
LABEL = "muster.dev/repair"  # of Nodes (class, or gave-up), and of what is made for them with the pods of Jobs (class)
JOB_KEPT_S = 24 * 3600  # after its end, if the template does not set it
JOB_KEPT_LEAST_S = 600

_VARIABLE = re.compile(r"\$\{([^{}]*)\}")
_OF_NODE = re.compile(r"(label|annotation):(.+)")
_EXPECTED = ", ".join(f"${{{name}}}" for name in VARIABLES) + ", ${label:KEY} or ${annotation:KEY} of the Node"
# labels with this prefix, or a subdomain of it, are those that the admission plug-in NodeRestriction lets no kubelet
# change (Kubernetes documentation, "Using Admission Controllers"); it restricts no annotation
RESTRICTED = "node-restriction.kubernetes.io"
_WORDS = {
    "apiVersion": (re.compile(r"(?:[a-z0-9][a-z0-9.-]{0,252}/)?v[a-z0-9]{1,30}"), "example.com/v1"),
    "kind": (re.compile(r"[A-Z][A-Za-z0-9]{0,62}"), "Remediation"),
}

Manifest = dict[str, JsonValue]


class Drain(StrictModel):
    """What happens to the pods on a tainted node.

    when:  completion: evict none; after: evict those that remain ``after`` seconds after the taint; now: evict at once
    pods:  all except those of DaemonSets, static ones, and those that tolerate the taint; or only those of them with an
           accelerator. All by default: a reboot or a replacement ends every pod, so pods that can move should do so
           within their budgets first; and job launchers hold no accelerator, but wait for pods that do
    """

    when: Literal["completion", "after", "now"] = "completion"
    after: Duration | None = None
    pods: Literal["all", "accelerator"] = "all"

    @model_validator(mode="after")
    def _after_belongs_to_after(self) -> "Drain":
        if (self.when == "after") != (self.after is not None):
            raise ValueError("after: expected a time such as 30m with when: after, and none otherwise")
        return self


AT_ONCE = Drain(when="now")  # the effect of a rule's action drain in a pool without drain


def _texts(value: JsonValue) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from _texts(item)


def variables(template: JsonValue) -> frozenset[str]:
    """The variables in its texts."""
    return frozenset(name for text in _texts(template) for name in _VARIABLE.findall(text))


def fill_template(template: JsonValue, values: Mapping[str, str]) -> JsonValue:
    """A copy with every variable replaced. Raises KeyError for one without a value."""
    if isinstance(template, str):
        return _VARIABLE.sub(lambda match: values[match[1]], template)
    if isinstance(template, list):
        return [fill_template(item, values) for item in template]
    if isinstance(template, dict):
        return {key: fill_template(item, values) for key, item in template.items()}
    return template


def _checked(template: Manifest) -> Manifest:
    for name in sorted(variables(template)):
        of_node = _OF_NODE.fullmatch(name)
        if name not in VARIABLES and not (of_node and label_syntax.is_key(of_node[2])):
            raise ValueError(f"${{{name[:80]}}}: expected {_EXPECTED}")
    size = len(json.dumps(template))
    if size > TEMPLATE_LIMIT:
        raise ValueError(f"{size} bytes: expected at most {TEMPLATE_LIMIT}")
    return template


def _mapping(value: JsonValue, where: str) -> dict[str, JsonValue]:
    if not isinstance(value, dict):
        raise ValueError(f"{where}: expected a mapping")  # noqa: TRY004 - pydantic expects ValueError
    return value


class Job(StrictModel):
    """Create a Job (batch/v1). template: its manifest; apiVersion, kind and metadata.name are optional."""

    template: Manifest

    _variables = field_validator("template")(_checked)

    @field_validator("template")
    @classmethod
    def _is_job(cls, template: Manifest) -> Manifest:
        for key, expected in (("apiVersion", "batch/v1"), ("kind", "Job")):
            if template.get(key, expected) != expected:
                raise ValueError(f"{key}: {json.dumps(template[key])[:80]}: expected {expected}")
        metadata = _mapping(template.get("metadata", {}), "metadata")
        for key in ("name", "generateName"):
            if key in metadata:
                raise ValueError(f"metadata.{key}: not allowed: the tainter names each attempt's Job")
        spec = _mapping(template.get("spec"), "spec")
        _mapping(_mapping(spec.get("template"), "spec.template").get("spec"), "spec.template.spec")
        keep = spec.get("ttlSecondsAfterFinished", JOB_KEPT_S)
        if isinstance(keep, bool) or not isinstance(keep, int) or keep < JOB_KEPT_LEAST_S:
            raise ValueError(
                f"spec.ttlSecondsAfterFinished: {json.dumps(keep)[:80]}: expected at least {JOB_KEPT_LEAST_S}: a Job "
                f"that is deleted before the tainter has seen its result would be created again"
            )
        return template


class Create(StrictModel):
    """Create an object of any kind, and delete it when the attempt ends. metadata.name is generated for each attempt if
    it is missing."""

    manifest: Manifest

    _variables = field_validator("manifest")(_checked)

    @field_validator("manifest")
    @classmethod
    def _is_object(cls, manifest: Manifest) -> Manifest:
        for key, (word, example) in _WORDS.items():
            value = manifest.get(key)
            if not isinstance(value, str) or not word.fullmatch(value):
                raise ValueError(f"{key}: {json.dumps(value)[:80]}: expected a value such as {example}")
        metadata = _mapping(manifest.get("metadata", {}), "metadata")
        if "generateName" in metadata:
            raise ValueError("metadata.generateName: not allowed: the tainter must know the name")
        return manifest


class Remedy(StrictModel):
    """How faults of one class are repaired: by exactly one of job, annotate (the Node) and create.

    attempts: maximum number; wait: seconds in which an attempt must pass its proof before the next begins
    escalate: class to continue with after the last attempt; None: give up
    """

    job: Job | None = None
    annotate: Annotated[dict[str, str], Field(min_length=1, max_length=8)] | None = None
    create: Create | None = None
    attempts: Annotated[int, Field(ge=1, le=100)] = 3
    wait: Duration = 1800.0
    escalate: FaultClass | None = None

    @field_validator("annotate")
    @classmethod
    def _annotations(cls, annotate: dict[str, str] | None) -> dict[str, str] | None:
        for key in annotate or ():
            if not label_syntax.is_key(key):
                raise ValueError(f"{key[:80]!r}: {label_syntax.KEY_WORDS}")
            if key.partition("/")[0].endswith("muster.dev"):
                raise ValueError(f"{key[:80]!r}: expected another key: this one is reserved for Muster")
        _checked({**(annotate or {})})
        return annotate

    @model_validator(mode="after")
    def _one_way(self) -> "Remedy":
        given = [name for name in ("job", "annotate", "create") if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(f"{' and '.join(given) or 'none'}: expected exactly one of job, annotate and create")
        return self

    @property
    def template(self) -> JsonValue:
        """The part that may contain variables."""
        if self.job is not None:
            return self.job.template
        return self.create.manifest if self.create is not None else {**(self.annotate or {})}


class Repair(StrictModel):
    """By class; missing classes are not repaired. at_once: nodes of the pool under repair at a time."""

    at_once: Nodes = AtOnce(1)
    reset: Remedy | None = None
    reboot: Remedy | None = None
    replace: Remedy | None = None
    contact: Remedy | None = None

    @model_validator(mode="after")
    def _escalations_lead_up(self) -> "Repair":
        for place, name in enumerate(REPAIRED):
            remedy = self.of(name)
            if remedy is None or remedy.escalate is None:
                continue
            allowed = [str(each) for each in REPAIRED[place + 1 :] if self.of(each) is not None]
            if remedy.escalate not in allowed:
                words = " or ".join(allowed) or "none: no heavier class is repaired here"
                raise ValueError(f'{name}.escalate: "{remedy.escalate}": expected {words}')
        return self

    def of(self, fault_class: str) -> Remedy | None:
        return getattr(self, fault_class) if fault_class in REPAIRED else None


def check_node_keys(repair: Repair, listed: Collection[str], where: str) -> None:
    """Raises ValueError if a template contains a label or annotation that a kubelet can write and that is not listed:
    whoever has taken a node would choose what the repair does, for example which machine it powers off."""
    for name in REPAIRED:
        remedy = repair.of(name)
        for variable in sorted(variables(remedy.template)) if remedy is not None else ():
            of_node = _OF_NODE.fullmatch(variable)
            if of_node is None or of_node[2] in listed:
                continue
            prefix = of_node[2].rpartition("/")[0]
            if of_node[1] == "label" and (prefix == RESTRICTED or prefix.endswith(f".{RESTRICTED}")):
                continue
            raise ValueError(
                f"{where}.{name}: ${{{variable[:80]}}}: the kubelet of a node can write this {of_node[1]}: expected a "
                f"label {RESTRICTED}/NAME, or the key in templateKeys if you trust what it holds"
            )


class Quarantine(StrictModel):
    """ipus: maximum number of quarantined IPUs. By default 16, an IPU-POD16: four IPU-Machines.

    share: additional limit as a percentage of ``fleet``, the number of IPUs, which the tainter cannot count
    """

    ipus: Annotated[int, Field(ge=0, le=1000)] = 16
    share: Annotated[str, Field(pattern=r"^([0-9]|[1-9][0-9]|100)%$")] | None = None
    fleet: Annotated[int, Field(ge=1, le=1_000_000)] | None = None

    @model_validator(mode="after")
    def _share_of_something(self) -> "Quarantine":
        if (self.share is None) != (self.fleet is None):
            raise ValueError("expected share and fleet (the total number of IPUs) together, or neither")
        return self

    @property
    def limit(self) -> int:
        """Number of IPUs. A percentage is rounded down."""
        if self.share is None or self.fleet is None:
            return self.ipus
        return min(self.ipus, self.fleet * int(self.share[:-1]) // 100)


def safe_values(
    wanted: frozenset[str], known: Mapping[str, str], labels_of: Mapping[str, str], annotations_of: Mapping[str, str]
) -> dict[str, str]:
    """Values for the variables ``wanted``; known: those that are not the Node's. Raises ValueError for a missing value
    or one with characters that are not allowed."""
    values: dict[str, str] = {}
    for name in sorted(wanted):
        of_node = _OF_NODE.fullmatch(name)
        look: Callable[[str], str | None] = known.get
        if of_node:
            look = (labels_of if of_node[1] == "label" else annotations_of).get
        value: Any = look(of_node[2] if of_node else name)
        if not value:
            raise ValueError(f"${{{name}}} has no value")
        if not SAFE.fullmatch(value):
            raise ValueError(f"${{{name}}} is {value[:80]!r}: expected only letters, digits and ._:/@+=-")
        values[name] = value
    return values
