"""Devices as a driver of Dynamic Resource Allocation publishes them, and pods that ask for a number of them.

Objects of resource.k8s.io/v1 (Kubernetes 1.34 and later); DeviceTaintRules in the version that the API server serves.
"""

from typing import Any

from muster_kube.api.client import KubeClient

GROUP = "/apis/resource.k8s.io"
SLICES = f"{GROUP}/v1/resourceslices"
CLASSES = f"{GROUP}/v1/deviceclasses"
DRIVER = "gpu.muster.test"
PCI_ADDRESS = "resource.kubernetes.io/pciBusID"
GPUS = 8

Object = dict[str, Any]


def pci_address(index: int) -> str:
    """Of the node's GPU number ``index``."""
    return f"0000:{16 + index:02x}:00.0"


def device_name(index: int) -> str:
    return f"gpu-{index}"


def device_slice(node: str, count: int = GPUS, *, driver: str = DRIVER, pci: bool = True) -> Object:
    """All GPUs of a node, in a pool of the node's name. pci: with their addresses."""
    devices = [
        {
            "name": device_name(index),
            "attributes": {"uuid": {"string": f"GPU-{node}-{index}"}}
            | ({PCI_ADDRESS: {"string": pci_address(index)}} if pci else {}),
        }
        for index in range(count)
    ]
    pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": driver, "nodeName": node, "pool": pool, "devices": devices}
    return {"metadata": {"name": f"{node}-{driver}"}, "spec": spec}


def device_class(name: str, driver: str = DRIVER) -> Object:
    return {
        "metadata": {"name": name},
        "spec": {"selectors": [{"cel": {"expression": f"device.driver == '{driver}'"}}]},
    }


def device_claim(name: str, of_class: str, count: int) -> Object:
    exactly = {"deviceClassName": of_class, "allocationMode": "ExactCount", "count": count}
    return {"metadata": {"name": name}, "spec": {"devices": {"requests": [{"name": "gpus", "exactly": exactly}]}}}


def claiming_pod(name: str, *, selector: dict[str, str]) -> Object:
    """A pod that asks for what the claim of its own name has."""
    container = {"name": "main", "image": "muster.invalid/none", "resources": {"claims": [{"name": "gpus"}]}}
    return {
        "metadata": {"name": name},
        "spec": {
            "nodeSelector": selector,
            "restartPolicy": "Never",
            "resourceClaims": [{"name": "gpus", "resourceClaimName": name}],
            "containers": [container],
        },
    }


def device_taint_rule(name: str, node: str, index: int, effect: str = "NoSchedule") -> Object:
    """Keeps pods off one GPU of a node; effect: also NoExecute or None."""
    return {
        "metadata": {"name": name},
        "spec": {
            "deviceSelector": {"driver": DRIVER, "pool": node, "device": device_name(index)},
            "taint": {"key": "muster.test/faulty", "value": "true", "effect": effect},
        },
    }


async def rules_path(api: KubeClient) -> str:
    """Of DeviceTaintRules, in the version that the API server prefers."""
    for version in (await api.get(GROUP))["versions"]:
        resources = (await api.get(f"/apis/{version['groupVersion']}"))["resources"]
        if any(each["name"] == "devicetaintrules" for each in resources):
            return f"/apis/{version['groupVersion']}/devicetaintrules"
    raise AssertionError("the API server serves no DeviceTaintRules")
