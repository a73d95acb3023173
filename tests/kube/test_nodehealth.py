"""The CRD's schema and the types of muster_kube.nodehealth say the same, in both directions."""

import types
import typing
from pathlib import Path

import msgspec
import pytest
import yaml

from muster_kube import nodehealth
from muster_kube.nodehealth import NodeHealthSpec, NodeHealthStatus, ReportedCheck

CRD = Path(__file__).parents[2] / "helm" / "muster" / "crds" / "muster.dev_nodehealths.yaml"
SCALARS = {str: "string", int: "integer", float: "number", bool: "boolean"}


@pytest.fixture(scope="module")
def crd():
    return yaml.safe_load(CRD.read_text())


@pytest.fixture(scope="module")
def schema(crd):
    (version,) = crd["spec"]["versions"]
    return version["schema"]["openAPIV3Schema"]


def differences(schema, kind, where):
    """Every place where ``schema`` and the type ``kind`` disagree, and how."""
    if typing.get_origin(kind) is types.UnionType:
        (kind,) = [arm for arm in typing.get_args(kind) if arm is not type(None)]
    if kind in SCALARS:
        expected = "object" if schema.get("type") == "object" else SCALARS[kind]
        if schema.get("type") != SCALARS[kind]:
            yield where, f"{schema.get('type')} instead of {expected}"
        if kind is str and "enum" not in schema and "maxLength" not in schema:
            yield where, "unbounded text"
    elif typing.get_origin(kind) is tuple:
        if schema.get("type") != "array" or "maxItems" not in schema:
            yield where, "no bounded array"
        else:
            yield from differences(schema["items"], typing.get_args(kind)[0], f"{where}[]")
    elif typing.get_origin(kind) is dict:
        if "maxProperties" not in schema or schema["additionalProperties"]["type"] != "string":
            yield where, "no bounded map of texts"
    else:
        fields = {field.encode_name: field for field in msgspec.structs.fields(kind)}
        properties = schema.get("properties", {})
        for name in sorted(fields.keys() ^ properties.keys()):
            yield f"{where}.{name}", f"only in the {'type' if name in fields else 'schema'}"
        required = {name for name, field in fields.items() if field.required}
        if required != set(schema.get("required", [])):
            yield where, f"required {schema.get('required')} instead of {sorted(required)}"
        for name in fields.keys() & properties.keys():
            if not properties[name].get("description"):
                yield f"{where}.{name}", "`kubectl explain` has no word for it"
            yield from differences(properties[name], fields[name].type, f"{where}.{name}")


def test_schema_and_types_agree(schema):
    properties = schema["properties"]
    assert list(differences(properties["spec"], NodeHealthSpec, "spec")) == []
    assert list(differences(properties["status"], NodeHealthStatus, "status")) == []


def test_the_comparison_sees_a_field_that_only_one_side_has(schema):
    class Drifted(ReportedCheck, frozen=True):
        extra: str = ""

    checks = schema["properties"]["status"]["properties"]["checks"]["items"]
    assert [where for where, _ in differences(checks, Drifted, "c")] == ["c.extra"]


def test_the_bounds_are_those_of_the_types_module(schema):
    spec, status = schema["properties"]["spec"]["properties"], schema["properties"]["status"]["properties"]
    check = status["checks"]["items"]["properties"]
    assert spec["requests"]["maxItems"] == nodehealth.REQUESTS_LIMIT
    assert spec["clear"]["maxItems"] == nodehealth.CLEAR_LIMIT
    assert check["findings"]["maxItems"] == nodehealth.FINDINGS_LIMIT
    assert check["cleared"]["maxItems"] == nodehealth.CLEARED_LIMIT + nodehealth.DISOWNED_LIMIT
    assert spec["requests"]["x-kubernetes-list-map-keys"] == ["id"]


def test_names_scope_and_columns(crd):
    spec = crd["spec"]
    (version,) = spec["versions"]
    assert crd["metadata"]["name"] == f"{nodehealth.PLURAL}.{nodehealth.GROUP}"
    assert (spec["scope"], version["name"]) == ("Cluster", nodehealth.VERSION)
    assert version["subresources"] == {"status": {}}
    assert [c["name"] for c in version["additionalPrinterColumns"]] == ["Verdict", "Failing", "Message", "Age"]


def test_it_is_small_enough_for_client_side_apply():
    assert CRD.stat().st_size < 200_000  # the annotation of the last applied state holds 262,144 bytes
