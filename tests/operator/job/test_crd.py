"""The CRD of IPUJobs: structural, complete, small, and made from the types."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from muster_operator.job import crd
from muster_operator.job.status_types import IPUJobStatus
from muster_operator.job.types import IPUJobSpec

FILE = Path(__file__).parents[3] / "helm" / "muster" / "crds" / crd.FILE
# of the published CRD 1.2.0 (graphcore/helm-charts): path, type
PUBLISHED = {
    "spec.cleanPodPolicy": "string",
    "spec.interactive.ttl": "integer",
    "spec.ipusPerJobInstance": "string",
    "spec.jobInstances": "integer",
    "spec.launcher.command": "array",
    "spec.launcher.env": "array",
    "spec.modelReplicasPerWorker": "string",
    "spec.restartPolicy.backOffLimit": "integer",
    "spec.restartPolicy.exitCodes": "string",
    "spec.restartPolicy.type": "string",
    "spec.workers.replicas": "integer",
    "spec.workers.strategy.rollingUpdate.maxSurge": None,
    "spec.workers.strategy.rollingUpdate.maxUnavailable": None,
    "spec.workers.strategy.type": "string",
    "spec.workers.template": "object",
    "spec.workersPerJobInstance": "string",
    "status.completionTime": "string",
    "status.conditions.lastTransitionTime": "string",
    "status.conditions.lastUpdateTime": "string",
    "status.conditions.message": "string",
    "status.conditions.reason": "string",
    "status.conditions.status": "string",
    "status.conditions.type": "string",
    "status.currentReplicas": "integer",
    "status.desiredReplicas": "integer",
    "status.iPUPartitionCreated": "boolean",
    "status.lastMessage": "string",
    "status.lastReconcileTime": "string",
    "status.launcherStatus": "string",
    "status.restartCount": "integer",
    "status.startTime": "string",
    "status.workersStatus.active": "integer",
    "status.workersStatus.failed": "integer",
    "status.workersStatus.succeeded": "integer",
}
KNOWN = {
    "type", "description", "properties", "required", "items", "enum", "pattern", "minimum", "maximum", "format",
    "default", "nullable", "allOf", "x-kubernetes-preserve-unknown-fields", "x-kubernetes-int-or-string",
    "x-kubernetes-list-type", "x-kubernetes-list-map-keys", "additionalProperties",
}  # fmt: skip


def fields(found: dict[str, Any], path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """All below, lists left out of the path."""
    yield path, found
    below = found.get("items", found)
    for name, each in below.get("properties", {}).items():
        yield from fields(each, f"{path}.{name}")


@pytest.fixture
def schema() -> dict[str, dict[str, Any]]:
    whole = crd.schema()["properties"]
    return {path: found for name in ("spec", "status") for path, found in fields(whole[name], name)}


def test_the_file_is_the_one_that_is_made() -> None:
    """`make generate` writes it."""
    assert FILE.read_text() == crd.text()
    assert yaml.safe_load(crd.text()) == crd.definition()


def test_it_is_small_enough_for_kubectl_apply() -> None:
    """Which keeps it all in an annotation, and annotations end at 256 KiB."""
    assert len(json.dumps(crd.definition())) < 32 << 10


def test_every_field_of_the_published_one_is_there(schema: dict[str, dict[str, Any]]) -> None:
    assert {path: schema[path].get("type") for path in PUBLISHED} == PUBLISHED
    older = ("spec.workerPerJobInstance", "spec.modelReplicas", "spec.ipusPerModelReplica")
    assert [schema[path]["type"] for path in older] == ["string"] * 3


def test_every_field_has_a_description(schema: dict[str, dict[str, Any]]) -> None:
    assert [path for path, found in schema.items() if not found.get("description")] == []
    assert [path for path, found in schema.items() if "`" in found["description"]] == []


def test_the_schema_uses_only_features_of_1_20_and_types_each_node(schema: dict[str, dict[str, Any]]) -> None:
    for path, found in schema.items():
        assert set(found) <= KNOWN, path
        assert "type" in found or found["x-kubernetes-int-or-string"], path
        for each in (found, found.get("items", {})):
            # a structural schema with fields of its own prunes all others
            assert not ("properties" in each and "x-kubernetes-preserve-unknown-fields" in each), path


def test_defaulted_fields_are_required_only_after_the_webhook(schema: dict[str, dict[str, Any]]) -> None:
    """kubectl's own check knows no allOf, and a file of the alpha-5 form has to get past it."""
    assert schema["spec"]["required"] == ["workers"]
    assert schema["spec"]["allOf"] == [{"required": ["jobInstances", "ipusPerJobInstance"]}]
    assert "default" not in schema["spec.workers.replicas"]


def test_only_two_fields_have_a_default_of_the_schema(schema: dict[str, dict[str, Any]]) -> None:
    found = {path: each["default"] for path, each in schema.items() if "default" in each}
    assert found == {"spec.restartPolicy.backOffLimit": 3, "status": {}, "status.launcherStatus": "Pending"}


def test_numbers_are_bounded_and_times_are_times(schema: dict[str, dict[str, Any]]) -> None:
    for path, found in schema.items():
        if found.get("type") == "integer":
            assert found["format"] == "int64" or found["maximum"] <= 2**31 - 1, path
        if path.endswith("Time"):
            assert found["format"] == "date-time", path


def test_it_has_the_types_fields_and_no_others(schema: dict[str, dict[str, Any]]) -> None:
    for name, kind in (("spec", IPUJobSpec), ("status", IPUJobStatus)):
        below = {path.partition(".")[2] for path in schema if path.startswith(f"{name}.") and path.count(".") == 1}
        assert below == {field.encode_name for field in msgspec.structs.fields(kind)}
