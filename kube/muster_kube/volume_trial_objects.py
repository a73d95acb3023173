"""The claim and the pod of a volume trial: the objects to create, and the fields to watch."""

import hashlib

from muster_kube.api.objects import Api, Metadata
from muster_kube.api.pods import ContainerState, PodPlacement, PodProgress

LABEL = "muster.dev/trial"
# writes 4 MiB twice, flushes, and compares: detects a volume that accepts writes and loses them
_WRITE = "head -c 4194304 /dev/urandom > /trial/a && sync && cp /trial/a /trial/b && sync && cmp /trial/a /trial/b"


class _ClaimSpec(Api, frozen=True):
    storage_class_name: str = ""
    volume_name: str = ""


class _ClaimStatus(Api, frozen=True):
    phase: str = ""


class VolumeClaim(Api, frozen=True):
    metadata: Metadata
    spec: _ClaimSpec = _ClaimSpec()
    status: _ClaimStatus = _ClaimStatus()


class TrialPod(Api, frozen=True):
    metadata: Metadata
    spec: PodPlacement = PodPlacement()
    status: PodProgress = PodProgress()

    @property
    def state(self) -> ContainerState:
        return self.status.container_statuses[0].state if self.status.container_statuses else ContainerState()


def make_pod(name: str, node: str, image: str, deadline_s: int) -> dict[str, object]:
    """A pod for this node that tolerates all taints. The scheduler places it, because volume binding needs that."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {LABEL: node_mark(node)}},
        "spec": {
            "restartPolicy": "Never",
            "activeDeadlineSeconds": deadline_s,
            "terminationGracePeriodSeconds": 0,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "tolerations": [{"operator": "Exists"}],
            "affinity": {
                "nodeAffinity": {
                    "requiredDuringSchedulingIgnoredDuringExecution": {
                        "nodeSelectorTerms": [
                            {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
                        ]
                    }
                }
            },
            "containers": [
                {
                    "name": "write",
                    "image": image,
                    "command": ["sh", "-c", _WRITE],
                    "resources": {
                        "requests": {"cpu": "10m", "memory": "16Mi"},
                        "limits": {"cpu": "500m", "memory": "64Mi"},
                    },
                    "securityContext": {
                        "allowPrivilegeEscalation": False,
                        "capabilities": {"drop": ["ALL"]},
                        "seccompProfile": {"type": "RuntimeDefault"},
                    },
                    "volumeMounts": [{"name": "trial", "mountPath": "/trial"}],
                }
            ],
            "volumes": [{"name": "trial", "persistentVolumeClaim": {"claimName": name}}],
        },
    }


def make_claim(name: str, node: str, storage_class: str, size_mib: int) -> dict[str, object]:
    """The claim. Without a class, the cluster uses its default class."""
    spec: dict[str, object] = {
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": f"{size_mib}Mi"}},
    }
    if storage_class:
        spec["storageClassName"] = storage_class
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name, "labels": {LABEL: node_mark(node)}},
        "spec": spec,
    }


def node_mark(node: str) -> str:
    """A label value for a node. Node names may be too long for label values."""
    return f"pvc-{hashlib.sha256(node.encode()).hexdigest()[:16]}"
