"""The CustomResourceDefinition of IPUJobs, made from the types in :mod:`muster_operator.job.types`.

A structural schema for API servers from 1.20 on: no CEL, no references. Pruning comes before admission, so the older
spellings are part of it; and kubectl checks a file by what is published of it before any webhook sees it, which leaves
out ``allOf``. So what the defaulting webhook may still fill in is required there.
"""

from collections.abc import Iterator
from typing import Any

import msgspec
import yaml

from muster_operator.job.types import GROUP, KIND, PLURAL, VERSION, IPUJobSpec, IPUJobStatus

Schema = dict[str, Any]
_Path = tuple[str, ...]

FILE = f"{GROUP}_{PLURAL}.yaml"
NAME = f"{PLURAL}.{GROUP}"
HEAD = """\
# IPUJob: what people submit. Made by `make generate` from operator/muster_operator/job/types.py; edits are overwritten.
# Field names are those of the published CRD 1.2.0 and of the forms before it; "Muster's own" says what is not.
"""
LINE = 118  # characters
INT32 = 2**31 - 1

# What the published CRD requires though the types have a value for it, and which of the types' values the API server
# fills in itself, by path. workers.replicas is not among them: the webhook has to see whether it was given.
REQUIRED: dict[_Path, list[str]] = {("spec", "restartPolicy"): ["type"]}
DEFAULTED: set[_Path] = {("spec", "restartPolicy", "backOffLimit"), ("status", "launcherStatus")}
AFTER_DEFAULTING = ["jobInstances", "ipusPerJobInstance"]
INT64 = {"observedGeneration"}
KEYS: dict[_Path, list[str]] = {("status", "conditions"): ["type"]}

COLUMNS = (
    ("status", "string", ".status.launcherStatus"),
    ("current", "integer", ".status.currentReplicas"),
    ("desired", "integer", ".status.desiredReplicas"),
    ("LastMessage", "string", ".status.lastMessage"),
    ("Age", "date", ".metadata.creationTimestamp"),
)


def definition() -> Schema:
    """As the API takes it."""
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": NAME},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {"kind": KIND, "listKind": f"{KIND}List", "plural": PLURAL, "singular": KIND.lower()},
            "versions": [
                {
                    "name": VERSION,
                    "served": True,
                    "storage": True,
                    "subresources": {
                        "status": {},
                        "scale": {
                            "specReplicasPath": ".spec.jobInstances",
                            "statusReplicasPath": ".status.currentReplicas",
                            "labelSelectorPath": ".status.selector",
                        },
                    },
                    "additionalPrinterColumns": [
                        {"name": name, "type": kind, "jsonPath": path} for name, kind, path in COLUMNS
                    ],
                    "schema": {"openAPIV3Schema": schema()},
                }
            ],
        },
    }


def schema() -> Schema:
    """Of a whole IPUJob."""
    _, types = msgspec.json.schema_components([IPUJobSpec, IPUJobStatus])
    spec = _structural(types[IPUJobSpec.__name__], types, ("spec",))
    status = _structural(types[IPUJobStatus.__name__], types, ("status",))
    spec["allOf"] = [{"required": AFTER_DEFAULTING}]
    status["default"] = {}  # so that launcherStatus has its default from the first moment
    return {
        "type": "object",
        "description": "A job on IPUs: launcher and workers on partitions of its own.",
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            "spec": spec,
            "status": status,
        },
    }


def text() -> str:
    """The file."""
    return HEAD + yaml.safe_dump(definition(), sort_keys=False, width=LINE, allow_unicode=True)


def _structural(found: Schema, types: dict[str, Schema], path: _Path) -> Schema:
    """``found``, of JSON Schema as msgspec has it, in the part of it that a CRD may use. path: of the field."""
    if "$ref" in found:
        outside = {key: value for key, value in found.items() if key != "$ref"}
        return _structural(types[found["$ref"].rpartition("/")[2]] | outside, types, path)
    choices = found.get("anyOf", [found])
    plain = [choice for choice in choices if choice != {"type": "null"}]
    made: Schema = {}
    if len(plain) > 1:
        made["x-kubernetes-int-or-string"] = True
    elif "$ref" in plain[0]:
        made |= _structural(plain[0], types, path)
    else:
        made |= dict(_of_one_type(plain[0], types, path))
    # kubectl explain hears nothing of the fields of what may be null; a merge patch takes it away all the same
    if len(plain) < len(choices) and "properties" not in made:
        made["nullable"] = True
    if "description" in found:
        made["description"] = " ".join(found["description"].split())
    if path in DEFAULTED:
        made["default"] = found["default"]
    return made


def _of_one_type(found: Schema, types: dict[str, Schema], path: _Path) -> Iterator[tuple[str, Any]]:
    kind = found.get("type", "string")  # an enumeration of words has none
    yield "type", kind
    for key in ("enum", "pattern", "minimum", "maximum"):
        if key in found:
            yield key, found[key]
    if kind == "string" and path[-1].endswith("Time"):
        yield "format", "date-time"
    elif kind == "integer" and path[-1] in INT64:
        yield "format", "int64"
    elif kind == "integer":
        yield "format", "int32"
        if "maximum" not in found:
            yield "maximum", INT32
    elif kind == "array":
        yield "items", _structural(found["items"], types, path)
        if path in KEYS:
            yield "x-kubernetes-list-type", "map"
            yield "x-kubernetes-list-map-keys", KEYS[path]
    elif "properties" in found:
        required = [*found.get("required", []), *REQUIRED.get(path, [])]
        if required:
            yield "required", required
        fields = found["properties"].items()
        yield "properties", {name: _structural(field, types, (*path, name)) for name, field in fields}
    elif isinstance(values := found.get("additionalProperties"), dict) and values:
        yield "additionalProperties", _structural(values, types, path)
    elif kind == "object":
        yield "x-kubernetes-preserve-unknown-fields", True
