"""Nodes and NodeHealths as they are at first, and what others make of them."""

from collections.abc import Callable

import msgspec
from tests.explore.api_server import Json
from tests.explore.tainter.leader import NOON

from muster_kube.api.times import rfc3339
from muster_tainter.faults.record.node_record import ANNOTATION
from muster_tainter.policy.rules import OUR_PREFIX

FOREIGN = {"key": "dedicated", "value": "team", "effect": "NoSchedule"}
COMPONENT = "gpu/0000:3b:00.0"


def node_object(name: str, *taints: Json) -> Json:
    ready = {"type": "Ready", "status": "True"}
    spec = {"taints": list(taints)} if taints else {}
    return {"metadata": {"name": name, "uid": f"uid-{name}"}, "spec": spec, "status": {"conditions": [ready]}}


def finding(occurrence: int) -> Json:
    return {
        "component": COMPONENT, "reason": "Xid79", "verdict": "FAIL", "class": "reset", "occurrence": occurrence,
        "firstSeen": rfc3339(NOON), "lastSeen": rfc3339(NOON),
    }  # fmt: skip


def status_object(*findings: Json, cleared: tuple[Json, ...] = (), last: int = 0, boot: str = "boot") -> Json:
    verdict = "FAIL" if findings else "PASS"
    check = {"name": "dmesg", "verdict": verdict, "findings": list(findings), "cleared": list(cleared),
             "lastOccurrence": last}  # fmt: skip
    return {"verdict": verdict, "bootID": boot, "checks": [check], "observedAt": rfc3339(NOON)}


def add_other(status: Json) -> None:
    """A second check fails, too."""
    bad = {**finding(1), "component": "host", "reason": "Other"}
    status["checks"].append({"name": "other", "verdict": "FAIL", "findings": [bad], "lastOccurrence": 1})
    status["verdict"] = "FAIL"


# edits by others: of the Node, (who, change)


def _untaint(node: Json) -> None:
    left = [taint for taint in node["spec"].get("taints", []) if not taint["key"].startswith(OUR_PREFIX)]
    node["spec"] = {"taints": left} if left else {}


def _overwrite(node: Json) -> None:
    """A controller writes the list of taints from a copy that had none of ours, and adds its own."""
    _untaint(node)
    _taint(node)


def _taint(node: Json) -> None:
    taints = node["spec"].setdefault("taints", [])
    if FOREIGN not in taints:
        taints.append(FOREIGN)


def _forge(node: Json) -> None:
    """A kubelet, where nothing at admission protects the annotation, names a foreign taint as one of ours."""
    annotations = node["metadata"].setdefault("annotations", {})
    record = msgspec.json.decode(annotations.get(ANNOTATION, "{}"))
    record.setdefault("ours", []).append({key: FOREIGN[key] for key in ("key", "effect", "value")})
    annotations[ANNOTATION] = msgspec.json.encode(record).decode()


def _own(node: Json) -> None:
    """A kubelet changes what admission leaves to it: conditions, labels and annotations of its own."""
    node["status"]["conditions"] = [{"type": "Ready", "status": "False"}]
    node["metadata"].setdefault("labels", {})["kubelet"] = "x"


def _far(health: Json) -> None:
    """Somebody clears a number that no agent will ever reach."""
    entry = {"check": "dmesg", "component": "*", "occurrence": 2**53, "by": "mallory", "at": rfc3339(NOON)}
    health["spec"] = {"clear": [entry]}


EDITS: dict[str, tuple[str, Callable[[Json], None]]] = {
    "untaint": ("kubectl-taint", _untaint),
    "overwrite": ("kube-controller-manager", _overwrite),
    "taint": ("kubectl-taint", _taint),
    "forge": ("kubelet", _forge),
    "own": ("kubelet", _own),
    "far": ("kubelet", _far),
}
