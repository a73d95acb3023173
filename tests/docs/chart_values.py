"""Looks up values of the chart in its schema."""

import json
from typing import Any

from tests.docs.document_commands import ROOT

SCHEMA: dict[str, Any] = json.loads((ROOT / "helm/muster/values.schema.json").read_text())


def is_value(path: str) -> bool:
    node = SCHEMA
    for key in path.split("."):
        if "properties" not in node and "$ref" in (refers := next(iter(node.get("allOf", [])), {})):
            node = SCHEMA["definitions"][refers["$ref"].rpartition("/")[2]]
        if "properties" not in node:
            return True  # an object with any keys, such as labels or resources
        if key not in node["properties"]:
            return False
        node = node["properties"][key]
    return True
