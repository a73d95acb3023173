"""ResourceSlice and DeviceTaintRule on a server that has neither: CRDs with the fields of the published API.

So the tainter's part runs on every server; only the scheduler's and the eviction controller's need a modern one. The
fields are those of resource.k8s.io in Kubernetes 1.36 (v1 and v1beta2).
"""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.cluster.tainter.test_end_to_end import until

from muster_kube.api.client import KubeClient
from muster_kube.api.errors import ApiError, NotFound
from muster_tainter.devices.api_versions import NotServed, find_api

SLICES = "/apis/resource.k8s.io/v1/resourceslices"
RULES = "/apis/resource.k8s.io/v1beta2/devicetaintrules"
_DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"

_TEXT = {"type": "string"}
_NUMBER = {"type": "integer", "format": "int64"}


def _object(required: tuple[str, ...] = (), **fields: Any) -> dict[str, Any]:
    return {"type": "object", "properties": fields} | ({"required": list(required)} if required else {})


_TAINT = _object(
    ("key", "effect"),
    key=_TEXT,
    value=_TEXT,
    effect=_TEXT | {"enum": ["None", "NoSchedule", "NoExecute"]},
    timeAdded=_TEXT | {"format": "date-time"},
)
_ATTRIBUTE = _object(string=_TEXT, int=_NUMBER, bool={"type": "boolean"}, version=_TEXT)
_DEVICE = _object(
    ("name",),
    name=_TEXT,
    attributes={"type": "object", "additionalProperties": _ATTRIBUTE},
    taints={"type": "array", "items": _TAINT},
)
_SLICE = _object(
    ("driver", "pool"),
    driver=_TEXT,
    pool=_object(("name",), name=_TEXT, generation=_NUMBER, resourceSliceCount=_NUMBER),
    nodeName=_TEXT,
    allNodes={"type": "boolean"},
    devices={"type": "array", "maxItems": 128, "items": _DEVICE},
)
_RULE = _object(("taint",), deviceSelector=_object(driver=_TEXT, pool=_TEXT, device=_TEXT), taint=_TAINT)
_STATUS = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}


def _definition(kind: str, version: str, spec: dict[str, Any], **more: Any) -> dict[str, Any]:
    plural = f"{kind.lower()}s"
    schema = {"openAPIV3Schema": {"type": "object", "required": ["spec"], "properties": {"spec": spec, **more}}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"{plural}.resource.k8s.io",
            "annotations": {"api-approved.kubernetes.io": "unapproved, a stand-in for tests"},
        },
        "spec": {
            "group": "resource.k8s.io",
            "scope": "Cluster",
            "names": {"plural": plural, "singular": kind.lower(), "kind": kind, "listKind": f"{kind}List"},
            "versions": [{"name": version, "served": True, "storage": True, "schema": schema}],
        },
    }


async def serve_devices(api: KubeClient) -> None:
    """Until the server serves both, by itself or by the stand-in."""
    try:
        await find_api(api)
    except NotServed:
        for body in (
            _definition("ResourceSlice", "v1", _SLICE),
            _definition("DeviceTaintRule", "v1beta2", _RULE, status=_STATUS),
        ):
            try:
                await api.get(f"{_DEFINITIONS}/{body['metadata']['name']}")
            except NotFound:
                await api.create(_DEFINITIONS, body)

    async def served() -> bool:
        try:
            found = await find_api(api)
        except NotServed:
            return False
        for path in (found.rules, found.slices):
            await api.get(path)
        return True

    await until(served, "ResourceSlices and DeviceTaintRules are served")


async def delete_all(api: KubeClient) -> None:
    found = await find_api(api)
    for path in (found.rules, found.slices):
        for each in (await api.get(path))["items"]:
            try:
                await api.delete(f"{path}/{each['metadata']['name']}")
            except ApiError:
                continue  # somebody was faster


@pytest.fixture
async def device_api(api: KubeClient) -> AsyncIterator[KubeClient]:
    """A server with both, and none of either object before and after the test."""
    await serve_devices(api)
    await delete_all(api)
    yield api
    await delete_all(api)
