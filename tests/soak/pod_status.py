"""What a kubelet, the API server and the scheduler write into the status of a pod. Times in seconds since the epoch."""

from datetime import UTC, datetime
from typing import Any

Object = dict[str, Any]


def _bound(at: float) -> Object:
    return {"type": "PodScheduled", "status": "True", "lastTransitionTime": stamp(at)}


def running(at: float, started: float) -> Object:
    state = {"running": {"startedAt": stamp(started)}}
    return {"phase": "Running", "conditions": [_bound(at)], "containerStatuses": [_container(state)]}


def ended(started: float, at: float, code: int) -> Object:
    state = {
        "terminated": {
            "exitCode": code,
            "reason": "Completed" if code == 0 else "Error",
            "startedAt": stamp(started),
            "finishedAt": stamp(at),
        }
    }
    return {"phase": "Failed" if code else "Succeeded", "containerStatuses": [_container(state)]}


def _container(state: Object) -> Object:
    return {"name": "main", "image": "", "imageID": "", "ready": False, "restartCount": 0, "state": state}


def disrupted(reason: str, at: float) -> Object:
    return {
        "conditions": [
            {"type": "DisruptionTarget", "status": "True", "reason": reason, "lastTransitionTime": stamp(at)}
        ]
    }


def stamp(at: float) -> str:
    return datetime.fromtimestamp(int(at), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
