"""What must hold for IPUJobs, from what is in Kubernetes and V-IPU alone."""

from typing import Any

import msgspec
from tests.explore.api_server import Json, Request
from tests.explore.ipujob import cluster as kube
from tests.explore.ipujob.cluster import MUSTER, Cluster, Key

from muster_operator.job import names
from muster_operator.job.partition_api import PartitionEntry
from muster_operator.vipu.simulator.fleet import SimulatedFleet

Fleets = tuple[SimulatedFleet, ...]
ENDED = ("Succeeded", "Failed")


def tracker(cluster: Cluster) -> dict[str, PartitionEntry]:
    found = cluster.get(Key("configmaps", MUSTER, names.TRACKER)) or {}
    return {name: msgspec.json.decode(text, type=PartitionEntry) for name, text in found.get("data", {}).items()}


def of_step(before: Cluster, held: Fleets, what: tuple[Any, ...], after: Cluster, holds: Fleets) -> str:
    """What this step must not have done; empty if it is all right."""
    twins = [each.name for each in holds[0].partitions if any(other.find_partition(each.name) for other in holds[1:])]
    if twins:
        return f"two controllers have {twins}"
    match what:
        case ("runs", key, node):
            found = after.get(Key("nodes", "", str(node)))
            if found is not None and kube.is_faulty(found):
                return f"{key.name} starts on {node}, which is tainted"
        case ("do", _, Request(method="POST") as request) if request.path.endswith("/pods"):
            return _of_new_pod(before, held, msgspec.json.decode(request.body))
        case ("do", _, Request(method="remove" | "reset") as request) if request.by == "vipu":
            return _of_removal(before, msgspec.json.decode(request.body)[0])
    return ""


def _of_new_pod(cluster: Cluster, fleets: Fleets, pod: Json) -> str:
    labels, name = pod["metadata"]["labels"], pod["metadata"]["name"]
    if labels[names.ROLE] != names.WORKER:
        return ""
    job = cluster.get(Key("ipujobs", pod["metadata"]["namespace"], labels[names.JOB]))
    if job is not None and job.get("status", {}).get("launcherStatus") in ("Completed", "Failed"):
        return f"{name} is created for a job that has ended"
    wanted = names.partition(pod["metadata"]["namespace"], labels[names.JOB], int(labels[names.INSTANCE]))
    found = [part for fleet in fleets if (part := fleet.find_partition(wanted)) is not None]
    if not found or found[0].state != "ACTIVE":
        return f"{name} is created, and V-IPU's {wanted} is {found[0].state if found else 'not there'}"
    return ""


def _of_removal(cluster: Cluster, partition: str) -> str:
    if (entry := tracker(cluster).get(partition)) is None:
        return ""
    for key, pod in cluster.of("pods"):
        labels = pod["metadata"]["labels"]
        uses = (labels[names.JOB_UID], labels.get(names.INSTANCE)) == (entry.job, str(entry.instance))
        if uses and pod["status"]["phase"] == "Running":
            return f"{partition} is taken from the running pod {key.name}"
    return ""


def at_rest(cluster: Cluster, fleets: Fleets) -> str:
    """What is wrong when nothing is left to do; empty if nothing is."""
    entries = tracker(cluster)
    has = {each.name: each.state for fleet in fleets for each in fleet.partitions}
    if has != dict.fromkeys(entries, "ACTIVE") or any(each.state != "active" for each in entries.values()):
        told = {name: entry.state for name, entry in entries.items()}
        return f"tracker and V-IPU differ: {told}, {has}"
    jobs = {job["metadata"]["uid"]: job for _, job in cluster.of("ipujobs")}
    for name, entry in entries.items():
        if entry.job not in jobs:
            return f"{name} belongs to no job"
    for uid, job in jobs.items():
        pods = [pod for _, pod in cluster.of("pods") if pod["metadata"]["labels"][names.JOB_UID] == uid]
        held = {entry.instance for entry in entries.values() if entry.job == uid}
        if wrong := _of_job(job, pods, held, healthy=_has_healthy_node(cluster)):
            return f"{job['metadata']['name']}: {wrong}"
    orphans = [key.name for key, pod in cluster.of("pods") if pod["metadata"]["labels"][names.JOB_UID] not in jobs]
    return f"pods of no job: {orphans}" if orphans else ""


def _has_healthy_node(cluster: Cluster) -> bool:
    return not all(kube.is_faulty(node) for _, node in cluster.of("nodes"))


def _of_job(job: Json, pods: list[Json], held: set[int], *, healthy: bool) -> str:
    if job["metadata"].get("deletionTimestamp"):
        return "its deletion does not complete"
    status, spec = job.get("status", {}), job["spec"]
    state = status.get("launcherStatus")
    if state in ("Completed", "Failed"):
        return ""
    if spec.get("suspend"):
        return f"it is suspended, and has {len(pods)} pods, partitions {held}" if pods or held else ""
    wanted = set(range(spec["jobInstances"]))
    if status.get("desiredReplicas") != len(wanted):
        return f"DESIRED is {status.get('desiredReplicas')}, and {len(wanted)} are"
    if not healthy:
        return ""  # it may wait for a node; what it has is checked by the tracker
    running = {int(pod["metadata"]["labels"][names.INSTANCE]) for pod in pods if pod["status"]["phase"] != "Pending"}
    found = running, held, state, status.get("currentReplicas")
    if found != (wanted, wanted, "Running" if wanted else "Pending", len(wanted)):
        return f"pods {running}, partitions {held}, {state}, CURRENT {found[3]}; wanted: {wanted}"
    policy = spec["restartPolicy"]
    restarts = policy["type"] in ("OnFailure", "Always") and status.get("restartCount", 0) < policy["backOffLimit"]
    down = [pod["metadata"]["name"] for pod in pods if pod["status"]["phase"] == "Failed"]
    return f"{down} have failed, and are not replaced" if restarts and down else ""
