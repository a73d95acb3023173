"""Generates the chart's README.md and values.schema.json from the comments in values.yaml and the settings models."""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel

from muster_agent.settings import AgentSettings
from muster_checks.base.declaration import Check
from muster_checks.registry import load_registry
from muster_operator.admission.pod_security import ALLOWED_FORMS
from muster_operator.proxy.settings import ProxySettings
from muster_operator.settings import OperatorSettings
from muster_tainter.settings import TainterSettings as TainterSettings

HERE = Path(__file__).parent
CHART = HERE.parent / "helm" / "muster"
NOTE = "<!-- made by `make generate` from values.yaml; edits are overwritten -->"
Schema = dict[str, Any]

INTRODUCTION = """\
This chart installs the agent, the tainter, the IPU operator and the V-IPU proxy. To install, upgrade or uninstall it,
see [docs/install.md](../../docs/install.md). Values that the charts of the IPU Operator and of Autopilot have too keep
their names and effects. Values of those charts that Muster does not need only cause a warning, which names the
replacement.

Helm checks values against `values.schema.json`: a wrong type or an unknown name stops the install, and the error names
the value."""

# settings that the chart derives from its other values
AGENT_GIVEN = {
    "node", "root", "kmsg", "kubeconfig", "host", "port", "state_dir", "pod_uid", "log_format", "repeat", "run_as",
    "namespace", "service", "tainter_url", "tainter_token", "tainter_ca", "checks",
}  # fmt: skip
TAINTER_GIVEN = {
    "kubeconfig", "policy", "dry_run", "host", "port", "namespace", "trials_namespace", "repair_namespace",
    "agent_namespace", "agent_selector", "webhook_port", "webhook_name", "agent_account", "cert_dir", "log_format",
}  # fmt: skip
OPERATOR_GIVEN = {
    "kubeconfig", "vipu_proxy", "proxy_token", "proxy_namespace", "tracker", "namespace", "scope", "host", "port",
    "metrics_port", "webhook_port", "webhook_name", "cert_dir", "launcher_image", "launcher_image_pull_policy",
    "kubectl_version", "host_network", "privileged", "allow_in_templates", "dns_policy", "btl_tcp_if_include",
    "max_ipus", "ipu_visibility", "advertise_on_master", "extender_port", "devel_logs", "log_format", "quarantine",
    "quarantine_namespace", "ipu_pods",
}  # fmt: skip
PROXY_GIVEN = {
    "kubeconfig", "backend", "controllers", "controllers_file", "controllers_map", "tracker", "namespace", "allowed",
    "max_ipus", "host", "port", "read_timeout", "write_timeout", "idle_timeout", "log_level", "log_format",
    "quarantine", "quarantine_namespace",
}  # fmt: skip

NAME = "^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$"
# a controller's host, port and label key, as a key: --set splits a value at each comma
SPLIT = ":[0-9]+:"
PERIOD: Schema = {
    "type": ["number", "string"],
    "minimum": 0,
    "maximum": 8784,  # hours: 366 days, as the agent has it
    "pattern": r"^[0-9]{1,9}(\.[0-9]{1,9})?\s*[smhd]?$",
}
UNKNOWN = "a value of this chart (`helm show values` lists them)"
MISSING = (
    "all values of this chart. Values of an older release lack some: use helm upgrade --reset-then-reuse-values in "
    "place of --reuse-values (before helm 3.14: -f with your values file). null removes a value: omit the key instead"
)

DEFINITIONS: Schema = {
    "strings": {"type": "object", "additionalProperties": {"type": "string"}},
    "templateRights": {"type": "array", "items": {"type": "string", "pattern": f"^({ALLOWED_FORMS.pattern})$"}},
    "object": {"type": "object"},
    "objects": {"type": "array", "items": {"type": "object"}},
    "pullPolicy": {"enum": ["Always", "IfNotPresent", "Never"]},
    "failurePolicy": {"enum": ["Fail", "Ignore"]},
    "podSecurity": {"enum": ["privileged", "baseline", "restricted"]},
    "serviceType": {"enum": ["ClusterIP", "clusterIP", "NodePort", "LoadBalancer"]},
    "port": {"type": "integer", "minimum": 1, "maximum": 65535},
    "seconds": {"type": "number", "exclusiveMinimum": 0, "maximum": 86400},
    "period": PERIOD,
    "name": {"type": "string", "pattern": NAME},
    "image": {"type": "string", "pattern": r"^\S*$"},
    "nameOrNone": {"type": "string", "pattern": f"^$|{NAME}"},
    "subdomain": {"type": "string", "pattern": "^([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?)?$"},
    "labelValue": {"type": "string", "pattern": "^([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?$"},
    "kubectlVersion": {
        "type": ["string", "array"],
        "pattern": r"^(v?[0-9]+\.[0-9]+(\.[0-9]+)?)?$",
        "maxItems": 1,
        "items": {"type": "string", "pattern": r"^v?[0-9]+\.[0-9]+(\.[0-9]+)?$"},
    },
    "controllers": {"type": ["string", "array"], "items": {"type": "string", "minLength": 1}},
    "pullSecrets": {
        "type": ["array", "object"],
        "items": {
            "type": ["string", "object"],
            "minLength": 1,
            "required": ["name"],
            "additionalProperties": False,
            "properties": {"name": {"type": "string", "minLength": 1}},
        },
        "additionalProperties": False,
        "properties": {"name": {"type": "string", "minLength": 1}},
    },
    "tolerations": {
        "type": "array",
        "items": {
            "type": "object",
            "additionalProperties": False,
            "properties": {
                "key": {"type": "string"},
                "operator": {"enum": ["Exists", "Equal", "Lt", "Gt"]},
                "value": {"type": "string"},
                "effect": {"enum": ["", "NoSchedule", "PreferNoSchedule", "NoExecute"]},
                "tolerationSeconds": {"type": "integer"},
            },
        },
    },
    "resources": {
        "type": "object",
        "additionalProperties": False,
        "properties": {
            "limits": {"$ref": "#/definitions/quantities"},
            "requests": {"$ref": "#/definitions/quantities"},
            "claims": {"$ref": "#/definitions/objects"},
        },
    },
    "quantities": {"type": "object", "additionalProperties": {"type": ["string", "number"]}},
    "serviceAccount": {
        "type": "object",
        "additionalProperties": False,
        "properties": {
            "create": {"type": "boolean"},
            "name": {"$ref": "#/definitions/subdomain"},
            "annotations": {"$ref": "#/definitions/strings"},
        },
    },
    "split": {
        "type": "object",
        "minProperties": 1,
        "patternProperties": {SPLIT: True},
        "additionalProperties": {"$ref": "#/definitions/split"},
    },
}


@dataclass
class Value:
    """One value in values.yaml. path: dotted. default: for a section, its mapping. section: it has inner values."""

    path: str
    default: Any
    meaning: str
    schema: Schema
    section: bool = False
    inner: "dict[str, Value]" = field(default_factory=dict)


def read_values(text: str) -> dict[str, Value]:
    """The tree of values. Raises ValueError for a value without a comment, or a line that is not KEY: VALUE."""
    defaults = yaml.safe_load(text)
    top: dict[str, Value] = {}
    open_sections: list[tuple[int, Value]] = []
    comments: list[str] = []
    for number, line in enumerate(text.splitlines(), 1):
        bare = line.strip()
        if not bare:
            comments = []
            continue
        if bare.startswith("#"):
            comments.append(bare.removeprefix("#").strip())
            continue
        match = re.fullmatch(r"( *)([A-Za-z]+):(?: (.+))?", line)
        if match is None:
            raise ValueError(f"values.yaml:{number}: {bare!r}: expected KEY: VALUE on one line")
        indent = len(match[1])
        while open_sections and open_sections[-1][0] >= indent:
            open_sections.pop()
        path = ".".join([*(section.path.rpartition(".")[2] for _, section in open_sections), match[2]])
        meaning = " ".join(each for each in comments if not each.startswith("@schema"))
        if not meaning:
            raise ValueError(f"values.yaml:{number}: {path} has no comment")
        extra = [yaml.safe_load(each.removeprefix("@schema")) for each in comments if each.startswith("@schema")]
        value = Value(path, _at(defaults, path), meaning, extra[0] if extra else {}, section=match[3] is None)
        (open_sections[-1][1].inner if open_sections else top)[match[2]] = value
        if value.section:
            open_sections.append((indent, value))
        comments = []
    return top


def _at(defaults: Any, path: str) -> Any:
    for key in path.split("."):
        defaults = defaults[key]
    return defaults


def schema(values: Mapping[str, Value], checks: Mapping[str, Check]) -> Schema:
    definitions = dict(DEFINITIONS) | {
        "agentSettings": _settings(AgentSettings, AGENT_GIVEN),
        "tainterSettings": _settings(TainterSettings, TAINTER_GIVEN),
        "operatorSettings": _settings(OperatorSettings, OPERATOR_GIVEN),
        "proxySettings": _settings(ProxySettings, PROXY_GIVEN),
        "checks": {
            "type": "object",
            "additionalProperties": False,
            "properties": {name: _check(checks[name]) for name in sorted(checks)},
        },
    }
    definitions["whole"] = _whole(values)
    definitions["agentSettings"]["properties"]["checks"] = {
        "type": "object",
        "description": "settings of checks from plug-ins, in the format of `checks`",
        "additionalProperties": {"type": "object"},
    }
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "Values of the chart muster",
        "type": "object",
        "properties": {name: _schema(value) for name, value in values.items()},
        "allOf": [{"$ref": "#/definitions/whole"}],  # its error names each missing value
        "if": {"$ref": "#/definitions/whole"},
        "else": {"const": MISSING},
        # --set splits a list of controllers at its commas; the chart joins the pieces, which are top-level keys
        "patternProperties": {SPLIT: {"type": ["string", "number", "boolean", "object"]}},
        "additionalProperties": {"if": {"$ref": "#/definitions/split"}, "else": {"const": UNKNOWN}},
        "definitions": definitions,
    }


def _whole(values: Mapping[str, Value]) -> Schema:
    """Requires every value that the templates read. Maps and lists may be absent, which means empty."""
    needed = [name for name, value in values.items() if value.section or not isinstance(value.default, dict | list)]
    inner = {name: _whole(value.inner) for name, value in values.items() if value.section}
    return {"required": needed, "properties": inner}


def _schema(value: Value) -> Schema:
    if value.section:
        inner = {name: _schema(each) for name, each in value.inner.items()}
        return {
            "description": value.meaning,
            "type": "object",
            "additionalProperties": False,
            "properties": inner,
        }
    declared = value.schema
    if "$ref" in declared:  # draft 7 ignores other keywords beside a reference
        reference = {"$ref": declared["$ref"]}
        beside = {key: each for key, each in declared.items() if key != "$ref"}
        return {"description": value.meaning, "allOf": [reference, beside] if beside else [reference]}
    kind = {} if "enum" in declared or "type" in declared else {"type": _type(value.default)}
    return {"description": value.meaning, **kind, **declared}


def _type(default: object) -> str:
    names = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object"}
    return names[type(default)]


def _settings(model: type[BaseModel], given: set[str]) -> Schema:
    unknown = given - set(model.model_fields)
    if unknown:
        raise ValueError(f"{model.__module__} has no setting {', '.join(sorted(unknown))}")
    found = _plain(model.model_json_schema())
    return {
        "type": "object",
        "additionalProperties": False,
        "properties": {name: each for name, each in found["properties"].items() if name not in given},
    }


def _check(check: Check) -> Schema:
    return {
        "type": "object",
        "description": check.description,
        "additionalProperties": False,
        "properties": {
            "enabled": {"type": "boolean"},
            "period": {"$ref": "#/definitions/period"},
            "parameters": _plain(check.parameters.model_json_schema()),
        },
    }


def _plain(found: Schema) -> Schema:
    """pydantic's schema without references, titles and defaults. A default may depend on the machine."""
    shared = found.get("$defs", {})

    def walk(node: Any, names: bool = False) -> Any:
        if isinstance(node, list):
            return [walk(each) for each in node]
        if not isinstance(node, dict):
            return node
        if "$ref" in node and not names:
            return walk(shared[node["$ref"].rpartition("/")[2]])
        kept = node if names else {k: v for k, v in node.items() if k not in ("title", "default", "$defs", "format")}
        return {key: walk(each, names=key == "properties" and not names) for key, each in kept.items()}

    plain: Schema = walk(found)
    return plain


def readme(values: Mapping[str, Value]) -> str:
    lines = ["# The chart", "", NOTE, "", INTRODUCTION, ""]
    plain = [value for value in values.values() if not value.section]
    lines += ["## Top-level values", "", *_table(plain), ""]
    for value in values.values():
        if value.section:
            lines += [f"## {value.path}", "", value.meaning, "", *_table(_leaves(value)), ""]
    return "\n".join(lines)


def _leaves(section: Value) -> list[Value]:
    found: list[Value] = []
    for value in section.inner.values():
        found += _leaves(value) if value.section else [value]
    return found


def _table(values: Iterable[Value]) -> list[str]:
    lines = ["| value | default | meaning |", "|---|---|---|"]
    for value in values:
        default = json.dumps(value.default, ensure_ascii=False)
        lines.append(f"| `{value.path}` | `{_cell(default)}` | {_cell(value.meaning)} |")
    return lines


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


def files() -> dict[Path, str]:
    """The chart's README and the schema of its values."""
    values = read_values((CHART / "values.yaml").read_text())
    made = schema(values, load_registry(plug_ins=[]))
    return {
        CHART / "README.md": readme(values),
        CHART / "values.schema.json": json.dumps(made, indent=1) + "\n",
    }
