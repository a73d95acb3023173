"""The strict schemas of each version of Kubernetes that the chart is for."""

import json
import sys
from functools import cache
from pathlib import Path
from typing import Any

from tests.chart.helm_render import Object

OLDEST = (1, 25)  # of kubernetes-validate 1.37
# tests/environment.sh puts an older one there, whose code is not used: two of one name cannot be imported
OLDER = Path(sys.prefix) / "kubernetes-validate-1.28.3" / "kubernetes_validate" / "kubernetes-json-schema"


class SchemaMismatch(Exception):
    """An object is not as its schema says; the text names the field."""


def validate(body: Object, version: str) -> None:
    """version: ``1.24``. Raises SchemaMismatch."""
    # loaded by who validates: it takes two seconds of a processor, and every process of a run collects all tests
    import jsonschema

    try:
        _validate(body, version)
    except jsonschema.ValidationError as error:
        raise SchemaMismatch(str(error)) from error


def _validate(body: Object, version: str) -> None:
    import jsonschema
    import kubernetes_validate
    from referencing import Registry
    from referencing.jsonschema import DRAFT4

    major, minor = map(int, version.split("."))
    if (major, minor) >= OLDEST:
        kubernetes_validate.validate(body, version, strict=True)
        return
    group, _, api = body["apiVersion"].rpartition("/")
    name = "-".join(each for each in (body["kind"].lower(), group.split(".")[0], api) if each)
    folder = OLDER / f"v{version}.0-local-strict"
    definitions = DRAFT4.create_resource(_read(folder / "_definitions.json"))
    registry: Registry[Any] = Registry().with_resource("_definitions.json", definitions)
    jsonschema.Draft4Validator(_read(folder / f"{name}.json"), registry=registry).validate(body)


@cache
def _read(path: Path) -> Any:
    return json.loads(path.read_text())
