"""The agents' pods, reduced to what agent liveness needs: their node, and whether they are ready.

A few hundred bytes each, whatever the pods carry: one per node is kept in memory, so these types declare fewer fields
than those of ``muster_kube.api.pods``.
"""

import sys
from collections.abc import Iterator

import msgspec

from muster_kube.api.objects import Api, Metadata
from muster_kube.api.times import seconds

_READY = "Ready"
_NODE_NAME = "metadata.name"  # the field by which a DaemonSet's controller selects a pod's node
_NONE: dict[str, str] = {}


class FieldRequirement(Api, frozen=True):
    key: str
    values: tuple[str, ...] = ()


class Term(Api, frozen=True):
    match_fields: tuple[FieldRequirement, ...] = ()


class Required(Api, frozen=True):
    node_selector_terms: tuple[Term, ...] = ()


class NodeAffinity(Api, frozen=True):
    required: Required = msgspec.field(default=Required(), name="requiredDuringSchedulingIgnoredDuringExecution")


class Affinity(Api, frozen=True):
    node_affinity: NodeAffinity = NodeAffinity()


class AgentSpec(Api, frozen=True):
    node_name: str = ""
    affinity: Affinity | None = None


class ReadyCondition(Api, frozen=True):
    type: str
    status: str
    reason: str = ""
    last_transition_time: str | None = None


class AgentStatus(Api, frozen=True):
    phase: str = ""
    conditions: tuple[ReadyCondition, ...] = ()


class AgentPod(Api, frozen=True):
    metadata: Metadata
    spec: AgentSpec = AgentSpec()
    status: AgentStatus = AgentStatus()

    @property
    def node(self) -> str:
        """Where it runs, or will run once it is scheduled; empty if unknown."""
        return self.spec.node_name or next(_chosen(self.spec), "")

    @property
    def ready(self) -> bool:
        condition = self._condition
        return condition is not None and condition.status == "True"

    @property
    def silent_since(self) -> float:
        """Since when it is not ready, in seconds since the epoch; 0 if unknown."""
        condition = self._condition
        return seconds((condition and condition.last_transition_time) or self.metadata.creation_timestamp)

    @property
    def state(self) -> str:
        """Why it is not ready, as text: ``Running, ContainersNotReady``."""
        condition = self._condition
        words = (self.status.phase, condition.reason if condition else "", "deleted" if self._is_leaving else "")
        return ", ".join(word for word in words if word)

    @property
    def _condition(self) -> ReadyCondition | None:
        return next((each for each in self.status.conditions if each.type == _READY), None)

    @property
    def _is_leaving(self) -> bool:
        return bool(self.metadata.deletion_timestamp)


def _chosen(spec: AgentSpec) -> Iterator[str]:
    """The names that the pod's affinity allows."""
    if spec.affinity is not None:
        for term in spec.affinity.node_affinity.required.node_selector_terms:
            for field in term.match_fields:
                if field.key == _NODE_NAME:
                    yield from field.values


_RUNS_WELL = AgentStatus(phase="Running", conditions=(ReadyCondition(type=_READY, status="True"),))


def slim_agent_pod(pod: AgentPod) -> AgentPod:
    """The reflector's ``transform``."""
    meta = pod.metadata
    node = pod.node
    return AgentPod(
        metadata=Metadata(
            name=meta.name,
            namespace=sys.intern(meta.namespace),
            resource_version=meta.resource_version,
            creation_timestamp="" if pod.ready else meta.creation_timestamp,
            deletion_timestamp=meta.deletion_timestamp,
            labels=_NONE,
            annotations=_NONE,
        ),
        spec=AgentSpec(node_name=sys.intern(node)),
        status=_RUNS_WELL if pod.ready else _silent(pod.status),
    )


def _silent(status: AgentStatus) -> AgentStatus:
    ready = tuple(
        ReadyCondition(
            type=_READY,
            status=sys.intern(each.status),
            reason=sys.intern(each.reason),
            last_transition_time=each.last_transition_time,
        )
        for each in status.conditions
        if each.type == _READY
    )
    return AgentStatus(phase=sys.intern(status.phase), conditions=ready)
