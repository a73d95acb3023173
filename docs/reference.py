"""Two generated pages: the fields of an IPUJob (ipujob-fields.md) and the settings of all parts (settings.md)."""

import inspect
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from muster_agent.settings import AgentSettings, Period
from muster_operator.job import crd
from muster_operator.proxy.settings import ProxySettings
from muster_operator.settings import OperatorSettings
from muster_tainter.settings import TainterSettings as TainterSettings

HERE = Path(__file__).parent
NOTE = "<!-- made by `make generate` from the code; edits are overwritten -->"
BOUNDS = {"minimum": "at least", "exclusiveMinimum": "above", "maximum": "at most", "exclusiveMaximum": "below"}
PARTS: dict[str, tuple[type[BaseModel], str]] = {
    "agent": (AgentSettings, "AGENT"),
    "tainter": (TainterSettings, "TAINTER"),
    "operator": (OperatorSettings, "OPERATOR"),
    "vipu-proxy": (ProxySettings, "VIPU_PROXY"),
}


def cell(text: object) -> str:
    return str(text).replace("|", "\\|").replace("\n", " ").replace("<", "&lt;")


def job_fields() -> str:
    schema = crd.schema()
    lines = [
        "# Fields of an IPUJob",
        "",
        NOTE,
        "<!-- page typed by: tests/cluster/commands/test_sandbox_commands.py -->",  # tests/docs/command_list.py
        "",
        "Every field of an IPUJob's `spec` and `status`, as `kubectl explain ipujob.spec --recursive` shows them.",
        "Kubernetes defines the content of `template` and `env`. How the fields work together: [IPUJobs](ipujob.md).",
        "",
    ]
    for part in ("spec", "status"):
        lines += [f"## {part}", "", "| field | type | meaning |", "|---|---|---|"]
        lines += [*rows(schema["properties"][part], part), ""]
    return "\n".join(lines)


def rows(schema: Mapping[str, Any], part: str) -> Iterator[str]:
    """A line for each field of a resource's ``part``: path, type, meaning."""
    for path, node in _fields(schema, part):
        yield f"| `{path}` | {cell(_type(node))} | {cell(_meaning(node))} |"


def _fields(node: Mapping[str, Any], path: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for name, inner in node.get("properties", {}).items():
        at = f"{path}.{name}"
        yield at, inner
        yield from _fields(inner, at)
        yield from _fields(inner.get("items", {}), f"{at}[]")


def _type(node: Mapping[str, Any]) -> str:
    if node.get("x-kubernetes-int-or-string"):
        return "number or text"
    kind = str(node.get("type", "any"))
    return f"list of {node['items'].get('type', 'any')}s" if kind == "array" and "items" in node else kind


def _meaning(node: Mapping[str, Any]) -> str:
    bounds = [f"{word} {node[key]}" for key, word in (("minimum", "at least"), ("maximum", "at most")) if key in node]
    allowed = [f"one of {', '.join(map(str, node['enum']))}"] if "enum" in node else []
    default = [f"default {json.dumps(node['default'])}"] if "default" in node else []
    more = "; ".join([*allowed, *bounds, *default])
    text = str(node.get("description", "")).strip()
    return f"{text} ({more})" if more and text else text or more


def settings() -> str:
    lines = [
        "# Settings of the components",
        "",
        NOTE,
        "",
        "To change a setting, write it into a YAML file and pass the file with `--config FILE`, or set its environment",
        "variable, or use its flag. Flags take precedence over environment variables, and these over the file. With an",
        "unknown key or an invalid value the component does not start; the error names the key and the allowed values.",
        "",
        "In the chart, use `agent.config`, `tainter.config`, `controller.config` and `vipuProxy.config`. The chart",
        "derives some settings from its other values and does not accept these there.",
        "",
    ]
    for part, (model, prefix) in PARTS.items():
        description = inspect.cleandoc(model.__doc__ or "").replace("<", "&lt;")
        lines += [
            f"## muster {part}",
            "",
            *description.splitlines(),
            "",
            "| setting | environment | type | default |",
            "|---|---|---|---|",
        ]
        properties = model.model_json_schema()
        for name, field in model.model_fields.items():
            node = properties["properties"].get(name, {})
            if _is_period(field):
                kind, default = "number of hours, or a time such as 90s, 30m or 2d", f"`{field.default / 3600:g}h`"
            else:
                kind, default = _words(node, properties), _default(field.default, field.default_factory is not None)
            lines.append(f"| `{name}` | `MUSTER_{prefix}_{name.upper()}` | {cell(kind)} | {cell(default)} |")
        lines.append("")
    return "\n".join(lines)


def _is_period(field: FieldInfo) -> bool:
    """The model holds seconds, but reads a plain number as hours."""
    return tuple(field.metadata) == get_args(Period)[1:]


def _default(default: object, made: bool) -> str:
    if made:
        return "-"
    if default is PydanticUndefined:
        return "required"
    return "-" if default in (None, "", (), [], {}) else f"`{default}`"


def _words(node: Mapping[str, Any], whole: Mapping[str, Any]) -> str:
    if "$ref" in node:
        node = whole["$defs"][node["$ref"].rpartition("/")[2]]
    if "anyOf" in node:
        return " or ".join(dict.fromkeys(_words(each, whole) for each in node["anyOf"] if each.get("type") != "null"))
    if "enum" in node:
        return ", ".join(map(str, node["enum"]))
    kind = {"array": "list", "object": "mapping", "string": "text"}.get(
        str(node.get("type", "")), str(node.get("type", "any"))
    )
    bounds = [f"{word} {node[key]:g}" for key, word in BOUNDS.items() if key in node]
    return f"{kind}, {' and '.join(bounds)}" if bounds else kind


def files() -> dict[Path, str]:
    return {HERE / "ipujob-fields.md": job_fields(), HERE / "settings.md": settings()}
