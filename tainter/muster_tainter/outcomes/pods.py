"""Pods that have ended, or are bound and have not started: the fields that their outcome needs.

A pod's object has 5 to 50 kB; decoding skips all but these fields. :func:`muster_tainter.outcomes.outcome.reduce_pod`
reduces them further before anything is stored.
"""

import msgspec

from muster_kube.api.objects import Api, Metadata

PATH = "/api/v1/pods"
# ended pods: watched. The API server sends no running pod, and none that is about to start
ENDED: dict[str, str | int | bool] = {
    "fieldSelector": "spec.nodeName!=,status.phase!=Pending,status.phase!=Running,status.phase!=Unknown"
}
# bound pods that have not started: listed now and then, since only time makes them interesting
PENDING: dict[str, str | int | bool] = {"fieldSelector": "spec.nodeName!=,status.phase=Pending", "resourceVersion": "0"}
# running pods whose containers restart in place when they fail, if the policy asks for them: listed now and then, in
# pages, and nothing of them is kept. Pods with restartPolicy Always are services
RESTARTING: dict[str, str | int | bool] = {
    "fieldSelector": "spec.nodeName!=,status.phase=Running,spec.restartPolicy=OnFailure"
}


class Resources(Api, frozen=True):
    limits: dict[str, str] = msgspec.field(default_factory=dict)


class ContainerSpec(Api, frozen=True):
    resources: Resources = Resources()


class EndedState(Api, frozen=True):
    reason: str = ""
    exit_code: int = 0
    finished_at: str | None = None


class WaitingState(Api, frozen=True):
    reason: str = ""


class ContainerState(Api, frozen=True):
    waiting: WaitingState | None = None
    terminated: EndedState | None = None


class ContainerStatus(Api, frozen=True):
    state: ContainerState = ContainerState()
    last_state: ContainerState = ContainerState()


class PodCondition(Api, frozen=True):
    type: str
    status: str
    reason: str = ""
    last_transition_time: str | None = None


class OutcomeSpec(Api, frozen=True):
    node_name: str = ""
    containers: tuple[ContainerSpec, ...] = ()


class OutcomeStatus(Api, frozen=True):
    phase: str = ""
    reason: str = ""
    message: str = ""
    conditions: tuple[PodCondition, ...] = ()
    init_container_statuses: tuple[ContainerStatus, ...] = ()
    container_statuses: tuple[ContainerStatus, ...] = ()


Devices = tuple[tuple[str, int], ...]  # extended resources and how many of each, the most that one container asks for


class PodOutcome(Api, frozen=True):
    """What is kept of a pod.

    uid:     of the pod; owner: see :func:`muster_tainter.outcomes.owners.owner_of`
    kind:    of the failure; empty: none (it succeeded, or has not failed yet); None: its end says nothing about the
             node
    reason:  as Kubernetes wrote it
    created: when the API server created it; at: when it ended, or, if it is pending, when it was bound to its node.
             Seconds since the epoch
    pending: it has not started
    listed:  it came with a list, not from the watch: it may have ended long ago, when its node offered other devices
    """

    node: str
    namespace: str
    owner: str
    uid: str
    kind: str | None
    reason: str
    created: float
    at: float
    pending: bool = False
    listed: bool = False
    devices: Devices = ()


class OutcomePod(Api, frozen=True):
    """outcome: None as decoded; set by ``reduce_pod``, which drops the rest. The API has no such field."""

    metadata: Metadata
    spec: OutcomeSpec = OutcomeSpec()
    status: OutcomeStatus = OutcomeStatus()
    outcome: PodOutcome | None = msgspec.field(default=None, name="muster.dev/outcome")
