"""What a pod with IPUs gets at its admission, and the ConfigMap that its containers read once it has its partition.

Environment and volumes cannot be added later. Neither the partition nor the pod's own name is known at admission, so
both refer to a ConfigMap under a random name, which the operator creates afterwards. Its keys are required for the
environment: no container starts without a partition, even if somebody removes the scheduling gate.
"""

import copy
from collections.abc import Mapping
from typing import Any

from muster_operator.job import names
from muster_operator.job.ipu_pod import VOLUME, IpuPod, config_map_name, config_map_of
from muster_operator.job.partition_api import PartitionEntry
from muster_operator.job.snapshot import JobSetup
from muster_operator.resources import environment, placement
from muster_operator.resources.ownership import Body, annotate_content

MOUNTED_AT = "/etc/muster/ipus"
WAIT = "muster-wait-ipus"
HOST, PORT, PARTITION = "IPUOF_VIPU_API_HOST", "IPUOF_VIPU_API_PORT", "IPUOF_VIPU_API_PARTITION_ID"
_NOBODY = 65534  # the user of Muster's image
# the first process of a container ignores SIGTERM unless it has a handler
_WAITING = f"""\
trap 'exit 143' TERM
echo "waiting for a partition of $IPUS IPUs"
until [ -s {MOUNTED_AT}/{PARTITION} ]; do sleep 1 & wait $!; done
"""


def inject(pod: Mapping[str, Any], ipus: int, token: str, setup: JobSetup, *, gated: bool) -> Body:
    """The pod with everything that has to be there from the start; applied again, it only replaces the ConfigMap's
    name.

    ``pod``: as received from the API server, which has validated its form. gated: it waits by a scheduling gate, before
    it has a node; otherwise an init container waits on its node.
    """
    found = copy.deepcopy(dict(pod))
    found["metadata"]["labels"] = (found["metadata"].get("labels") or {}) | {names.IPUS: str(ipus)}
    (found["metadata"].get("annotations") or {}).pop(names.PARTITION, None)  # of a copied pod
    spec, name = found["spec"], config_map_name(ipus, token)
    ours = {"name": VOLUME, "configMap": {"name": name, "optional": True}}
    spec["volumes"] = [*_others(spec.get("volumes"), VOLUME), ours]
    waits = [] if gated else [_waiting_container(ipus, setup)]
    started = [_with_partition(each, name) for each in _others(spec.get("initContainers"), WAIT)]
    if waits or started:
        spec["initContainers"] = waits + started
    spec["containers"] = [_with_partition(each, name) for each in spec["containers"]]
    if gated:
        spec["schedulingGates"] = [*_others(spec.get("schedulingGates"), names.IPUS), {"name": names.IPUS}]
    affinity = spec.get("affinity") or {}
    spec["affinity"] = affinity | {"nodeAffinity": _keep_off_faulty(affinity.get("nodeAffinity") or {})}
    return found


def config_map(pod: IpuPod, entry: PartitionEntry, partition: str) -> Body:
    host, port = environment.host_and_port(entry.controller)
    content = {"data": {HOST: host, PORT: port, PARTITION: partition}}
    meta = pod.metadata
    # it goes with the pod; blockOwnerDeletion would need a right on the finalizers of pods
    owner = {"apiVersion": "v1", "kind": "Pod", "name": meta.name, "uid": meta.uid, "controller": True}
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": config_map_of(pod),
            "namespace": meta.namespace,
            "labels": {names.MANAGED_BY: names.MANAGER},
            "annotations": annotate_content(content),
            "ownerReferences": [owner],
        },
        **content,
    }


def _others(found: list[Body] | None, name: str) -> list[Body]:
    return [each for each in found or () if each.get("name") != name]


def _with_partition(container: Body, config: str) -> Body:
    def read(key: str) -> Body:
        return {"name": key, "valueFrom": {"configMapKeyRef": {"name": config, "key": key}}}

    ours = [
        *map(read, (HOST, PORT, PARTITION)),
        {"name": "IPUOF_VIPU_API_GCD_ID", "value": "0"},
        {"name": "IPUOF_VIPU_API_TIMEOUT", "value": environment.VIPU_TIMEOUT_S},
    ]
    mount = {"name": VOLUME, "mountPath": MOUNTED_AT, "readOnly": True}
    users = container.get("env") or ()
    return container | {
        "env": environment.merge_environment(ours, users, environment.PARTITION_VARIABLES),
        "volumeMounts": [*_others(container.get("volumeMounts"), VOLUME), mount],
    }


def _waiting_container(ipus: int, setup: JobSetup) -> Body:
    return {
        "name": WAIT,
        "image": setup.launcher_image,
        "imagePullPolicy": setup.launcher_image_pull_policy,
        "command": ["/bin/sh", "-c", _WAITING],
        "env": [{"name": "IPUS", "value": str(ipus)}],
        # pods without requests are rejected in namespaces with a quota
        "resources": {"requests": {"cpu": "10m", "memory": "16Mi"}},
        # as the Pod Security level restricted demands; the user, because an image of the installation may run as root
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "runAsNonRoot": True,
            "runAsUser": _NOBODY,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "volumeMounts": [{"name": VOLUME, "mountPath": MOUNTED_AT, "readOnly": True}],
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }


def _keep_off_faulty(users: Body) -> Body:
    """As for the pods of jobs; unchanged if it is there already."""
    required = users.get("requiredDuringSchedulingIgnoredDuringExecution") or {}
    terms = required.get("nodeSelectorTerms") or ()
    ours = (placement.NOT_FAULTY, placement.NOT_SPARE)
    if terms and all(each in (term.get("matchExpressions") or ()) for term in terms for each in ours):
        return users
    return placement.node_affinity(users, tolerate=False)
