"""Installs Muster's CRDs, namespace, service accounts and roles on a control plane, as the chart does on a cluster."""

import sysconfig
import time
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from muster_sandbox.controlplane.admin import AdminClient, Object

NAMESPACE = "muster"
AGENT = "muster-agent"
TAINTER = "muster-tainter"
OPERATOR = "muster-operator"
PROXY = "muster-vipu-proxy"

# plural and whether namespaced, for the kinds in our files
_KINDS = {
    "Namespace": ("namespaces", False),
    "ServiceAccount": ("serviceaccounts", True),
    "ClusterRole": ("clusterroles", False),
    "ClusterRoleBinding": ("clusterrolebindings", False),
    "Role": ("roles", True),
    "RoleBinding": ("rolebindings", True),
    "CustomResourceDefinition": ("customresourcedefinitions", False),
}


def crd_directory() -> Path:
    """The chart's CRDs: ``helm/muster/crds`` in a checkout, ``<prefix>/share/muster/crds`` from a wheel.

    Raises FileNotFoundError, which names both.
    """
    checkout = Path(__file__).resolve().parents[3] / "helm" / "muster" / "crds"
    installed = Path(sysconfig.get_path("data")) / "share" / "muster" / "crds"
    for directory in (checkout, installed):
        if any(directory.glob("*.yaml")):
            return directory
    raise FileNotFoundError(f"no CRDs in {checkout} nor in {installed}")


def install(admin: AdminClient, *, crds: Path | None = None, timeout_s: float = 120.0) -> None:
    """Apply CRDs (from ``crds``, by default :func:`crd_directory`) and RBAC; returns once the CRDs are served.

    Idempotent. Raises TimeoutError, admin.RequestRefused, FileNotFoundError.
    """
    names: list[str] = []
    for file in sorted((crds or crd_directory()).glob("*.yaml")):
        for body in yaml.safe_load_all(file.read_text()):
            apply(admin, body)
            names.append(body["metadata"]["name"])
    for body in yaml.safe_load_all(resources.files("muster_sandbox").joinpath("rbac.yaml").read_text()):
        apply(admin, body)
    deadline = time.monotonic() + timeout_s
    for name in names:
        path = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{name}"
        while not _is_served(admin, definition := admin.get(path)):
            if time.monotonic() > deadline:
                conditions = definition.get("status", {}).get("conditions", [])
                raise TimeoutError(f"{name} is not served after {timeout_s:.0f} s: {conditions}")
            time.sleep(0.03)


def apply(admin: AdminClient, body: Object) -> Object:
    """Server-side apply of one object of a kind in our files."""
    plural, namespaced = _KINDS[body["kind"]]
    version = body["apiVersion"]
    metadata: dict[str, Any] = body["metadata"]
    prefix = f"/api/{version}" if "/" not in version else f"/apis/{version}"
    place = f"/namespaces/{metadata['namespace']}" if namespaced else ""
    return admin.apply(f"{prefix}{place}/{plural}/{metadata['name']}", body)


def _is_served(admin: AdminClient, definition: Object) -> bool:
    """Established, and served: the API server starts serving some tens of milliseconds after it sets the condition."""
    conditions = definition.get("status", {}).get("conditions", [])
    if not any(each["type"] == "Established" and each["status"] == "True" for each in conditions):
        return False
    spec = definition["spec"]
    return all(
        admin.exists(f"/apis/{spec['group']}/{version['name']}/{spec['names']['plural']}?limit=1")
        for version in spec["versions"]
        if version["served"]
    )
