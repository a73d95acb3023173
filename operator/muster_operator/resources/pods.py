"""Builds the pods of a job from the workers' template. Settings of the template are kept; missing ones are filled in.

Behaviours 20 to 25. As in the original, pods run privileged, on the host network and with its resolver (RDMA needs the
interfaces of the host). Each of the three can be switched off, as the chart does by default, and explicit settings of
the template win.
"""

import copy
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

from msgspec import UnsetType

from muster_operator.job import checkpoint, kueue, names
from muster_operator.job.checkpoint import policy_of
from muster_operator.job.partition_api import PartitionEntry
from muster_operator.job.snapshot import JobSetup
from muster_operator.job.types import IPUJob, has_launcher, instances, ipus_per_instance, workers_per_instance
from muster_operator.resources import environment, placement
from muster_operator.resources.config import HOSTFILE, KUBECTL_AT, KUBEEXEC, MOUNTED_AT
from muster_operator.resources.ownership import Body, labels, owner_references
from muster_operator.resources.template import digest, main_container, pod_metadata, pod_spec

# A bare `sleep` as the first process of a container ignores SIGTERM, so each termination would take the whole grace
# period, and it does not reap the processes that MPI leaves behind.
SLEEP = ["/bin/sh", "-c", "trap 'exit 143' TERM; sleep 365d & wait"]
WAIT = "wait-workers"
TERMINATION_MESSAGE = "FallbackToLogsOnError"  # the job's status shows the reason of a failure after the pod is gone
# Pods without requests are killed first when memory runs out, and are rejected in namespaces with a quota.
_SMALL = {"requests": {"cpu": "100m", "memory": "128Mi"}}
_OF_THE_CONTAINER = (
    "image",
    "imagePullPolicy",
    "envFrom",
    "securityContext",
    "workingDir",
    "volumeMounts",
    "volumeDevices",
    "tty",
    "stdin",
)
# settings that only concern the workers: their spread, names, deadline and claims
_NOT_THE_LAUNCHERS = frozenset(
    {
        "containers",
        "initContainers",
        "ephemeralContainers",
        "serviceAccount",
        "hostname",
        "subdomain",
        "nodeName",
        "activeDeadlineSeconds",
        "topologySpreadConstraints",
        "readinessGates",
        "resourceClaims",
        "resources",
    }
)


def build_worker(
    job: IPUJob, index: int, entry: PartitionEntry, attempt: int, setup: JobSetup, *, avoid: Iterable[str] = ()
) -> Body:
    """index: instance x workers per instance + worker; entry: the partition of its instance; avoid: nodes."""
    instance, number = divmod(index, workers_per_instance(job.spec))
    spec = _spec(job, setup, [entry.selector], avoid)
    spec.setdefault("restartPolicy", "Never")  # the operator restarts the job itself
    env = environment.worker_environment(job, instance, number, entry, setup)
    main = main_container(job)["name"]
    spec["containers"] = [
        _privileged(
            {
                "terminationMessagePolicy": TERMINATION_MESSAGE,
                **container,
                "env": environment.merge_environment(env, container.get("env") or (), environment.PARTITION_VARIABLES),
                **(_sleep_command(container) if container["name"] == main and has_launcher(job.spec) else {}),
                **(
                    _checkpoint_hook(job, container) if container["name"] == main and not has_launcher(job.spec) else {}
                ),
            },
            setup,
        )
        for container in spec["containers"]
    ]
    marks = {
        names.ROLE: names.WORKER,
        names.INSTANCE: str(instance),
        names.INDEX: str(index),
        names.NUMBER: str(number),
        names.ATTEMPT: str(attempt),
    }
    if instance >= instances(job.spec):
        marks[names.SURGE] = "true"
    share = ipus_per_instance(job.spec) // workers_per_instance(job.spec)
    return _pod(job, names.worker_pod(job.metadata.name, index), marks, spec, {names.WORKER_IPUS: str(max(1, share))})


def build_launcher(
    job: IPUJob, entries: Iterable[PartitionEntry], attempt: int, setup: JobSetup, *, avoid: Iterable[str] = ()
) -> Body:
    """entries: all partitions of the job. The main container has the same name as in the workers. avoid: nodes."""
    spec = {
        key: value
        for key, value in _spec(job, setup, [entry.selector for entry in entries], avoid).items()
        if key not in _NOT_THE_LAUNCHERS
    }
    # an anti-affinity between workers does not concern the launcher
    spec["affinity"] = {key: value for key, value in spec["affinity"].items() if key == "nodeAffinity"}
    volumes = list(spec.get("volumes") or ())
    taken = {volume.get("name") for volume in volumes}
    mpi, kube = (_free_name(name, taken) for name in ("muster-mpi", "muster-kubectl"))
    main = copy.deepcopy(main_container(job))
    users = job.spec.launcher
    container: Body = {
        "name": main["name"],
        **{key: main[key] for key in _OF_THE_CONTAINER if key in main},
        "command": SLEEP if isinstance(users, UnsetType) else list(users.command),
        "env": environment.merge_environment(
            environment.launcher_environment(job, setup), environment.users_launcher_environment(job)
        ),
        "resources": _SMALL,
        "terminationMessagePolicy": TERMINATION_MESSAGE,
        **_checkpoint_hook(job, {}),
    }
    container["volumeMounts"] = [
        *(container.get("volumeMounts") or ()),
        {"name": mpi, "mountPath": MOUNTED_AT, "readOnly": True},
        {"name": kube, "mountPath": KUBECTL_AT, "readOnly": True},
    ]
    spec |= {
        "restartPolicy": "Never",
        "serviceAccountName": names.launcher_account(job.metadata.name),
        "automountServiceAccountToken": True,
        "initContainers": [_init_container(job, _free_name(WAIT, {main["name"]}), kube, setup)],
        "containers": [_privileged(container, setup)],
        "volumes": [*volumes, _config_volume(job, mpi), {"name": kube, "emptyDir": {}}],
    }
    marks = {
        names.ROLE: names.LAUNCHER,
        names.ATTEMPT: str(attempt),
        **kueue.launcher_pod_set(pod_metadata(job, "labels")),
    }
    return _pod(job, names.launcher_pod(job.metadata.name), marks, spec)


def _pod(
    job: IPUJob, name: str, marks: Mapping[str, str], spec: Body, notes: Mapping[str, str] = MappingProxyType({})
) -> Body:
    """marks: labels; notes: annotations."""
    metadata: Body = {
        "name": name,
        "namespace": job.metadata.namespace,
        "labels": {**pod_metadata(job, "labels"), **labels(job), names.TEMPLATE: digest(job), **marks},
        "ownerReferences": owner_references(job),
    }
    if annotations := {**_on_straggler(job), **pod_metadata(job, "annotations"), **notes}:
        metadata["annotations"] = annotations
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def _on_straggler(job: IPUJob) -> dict[str, str]:
    """The annotation that the tainter reads. The pod template's own comes first."""
    policy = policy_of(job).on_straggler
    return {} if isinstance(policy, UnsetType) else {names.ON_STRAGGLER: policy}


def _spec(job: IPUJob, setup: JobSetup, selectors: Iterable[str], avoid: Iterable[str]) -> Body:
    """The template's spec with network, resolver and placement."""
    spec = copy.deepcopy(pod_spec(job))
    if setup.host_network:
        spec.setdefault("hostNetwork", True)
    policy = setup.dns_policy or ("ClusterFirstWithHostNet" if spec.get("hostNetwork") else "")
    if policy:
        spec.setdefault("dnsPolicy", policy)
    tolerate = placement.tolerates_faulty(job)
    affinity = spec.get("affinity") or {}
    spec["affinity"] = {
        **affinity,
        "nodeAffinity": placement.node_affinity(
            affinity.get("nodeAffinity") or {},
            tolerate=tolerate,
            avoid=avoid,
            moved=job.status.last_move is not None,
        ),
    }
    if found := placement.tolerations(spec.get("tolerations") or (), setup, tolerate=tolerate):
        spec["tolerations"] = found
    else:
        spec.pop("tolerations", None)
    if selector := placement.node_selector(spec.get("nodeSelector") or {}, selectors):
        spec["nodeSelector"] = selector
    return spec


def _sleep_command(container: Mapping[str, Any]) -> Body:
    """A launcher job's workers sleep unless the template has a command (behaviour 20)."""
    return {} if container.get("command") or container.get("args") else {"command": SLEEP}


def _checkpoint_hook(job: IPUJob, container: Mapping[str, Any]) -> Body:
    """The preStop hook of a job that may move, added to the template's own lifecycle."""
    hook = checkpoint.hook(job)
    return {"lifecycle": {**(container.get("lifecycle") or {}), **hook}} if hook else {}


def _privileged(container: Body, setup: JobSetup) -> Body:
    """Privileged, unless the template sets or excludes it."""
    context = container.get("securityContext") or {}
    if setup.privileged and "privileged" not in context and context.get("allowPrivilegeEscalation") is not False:
        container["securityContext"] = {**context, "privileged": True}
    return container


def _init_container(job: IPUJob, name: str, volume: str, setup: JobSetup) -> Body:
    """Waits for the workers and copies kubectl (behaviour 21)."""
    return {
        "name": name,
        "image": setup.launcher_image,
        "imagePullPolicy": setup.launcher_image_pull_policy,
        "command": ["muster", "wait-workers"],
        "args": [
            *("--namespace", job.metadata.namespace),
            *("--job", job.metadata.name),
            *("--uid", job.metadata.uid),
            *("--workers", str(instances(job.spec) * workers_per_instance(job.spec))),
            *("--kubectl-to", KUBECTL_AT),
        ],
        "resources": _SMALL,
        # as the Pod Security level restricted demands
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        "volumeMounts": [{"name": volume, "mountPath": KUBECTL_AT}],
        "terminationMessagePolicy": TERMINATION_MESSAGE,
    }


def _config_volume(job: IPUJob, name: str) -> Body:
    return {
        "name": name,
        "configMap": {
            "name": names.config_map(job.metadata.name),
            "items": [
                {"key": KUBEEXEC, "path": KUBEEXEC, "mode": 0o555},
                {"key": HOSTFILE, "path": HOSTFILE, "mode": 0o444},
            ],
        },
    }


def _free_name(name: str, taken: Iterable[str | None]) -> str:
    """``name``, or the first unused one of ``name-1``, ``name-2``, …."""
    used = set(taken)
    number = 0
    found = name
    while found in used:
        number += 1
        found = f"{name}-{number}"
    return found
