"""The health of the nodes and IPUs under jobs' pods, and which jobs to reconcile when it changes.

Indexed by node, so that a change of one of thousands of nodes only touches the jobs on it.
"""

import logging
from collections.abc import Callable, Iterable, Mapping

import msgspec

from muster_kube.controller.reflector import Reflector
from muster_operator.job.partition_api import PartitionEntry, ipus_of
from muster_operator.job.pod_outcome import shorten
from muster_operator.job.snapshot import JobPod, NodeProblem
from muster_operator.observe.node_capacity import FAULTS, FleetNode, is_healthy
from muster_operator.observe.tracker_reader import TrackerReader, job_key

log = logging.getLogger(__name__)

UNKNOWN_S = 15.0  # a pod may be known slightly before its node; after this time the node counts as gone
_WORDS = 300  # characters about one IPU
_FAULTS_SHOWN = 2

IPU = tuple[str, int]  # IPU-Machine, index


class _IpuFault(msgspec.Struct, frozen=True):
    check: str = ""
    reason: str = ""
    message: str = ""


class _QuarantinedIpu(msgspec.Struct, frozen=True):
    """A value of ``muster-ipu-quarantine``, as the tainter writes it."""

    machine: str
    index: int
    faults: tuple[_IpuFault, ...] = ()


def find_node_problem(node: FleetNode, our_taints: frozenset[str]) -> NodeProblem | None:
    """Not being Ready takes precedence: other findings may be its consequence."""
    ready = next((each for each in node.status.conditions if each.type == "Ready"), None)
    if ready is None or ready.status != "True":
        why = f" ({ready.reason})" if ready is not None and ready.reason else ""
        return NodeProblem("NotReady", f"it is not Ready{why}")
    if is_healthy(node, our_taints):
        return None
    details = node.metadata.annotations.get(FAULTS, "")
    taints = ", ".join(each.key for each in node.spec.taints if each.key in our_taints) or "muster.dev/faulty"
    return NodeProblem("Faulty", details or f"it is tainted by {taints}")


def read_quarantine(data: Mapping[str, str]) -> dict[IPU, str]:
    """The fault of each IPU, for people. Entries that cannot be decoded are skipped."""
    found: dict[IPU, str] = {}
    for key, text in sorted(data.items()):
        try:
            entry = msgspec.json.decode(text, type=_QuarantinedIpu)
        except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
            log.warning("quarantine: skipping entry %s: %s", key, error)
            continue
        details = [f"{each.check}: {each.reason}: {each.message}".strip(": ") for each in entry.faults[:_FAULTS_SHOWN]]
        why = f" ({'; '.join(details)})" if details else ""
        found[entry.machine, entry.index] = shorten(f"IPU {entry.machine}/{entry.index} is quarantined{why}", _WORDS)
    return found


class HardwareHealth:
    """nodes: the reflector of nodes; on_change: called with a job (``namespace/name``) that must be reconciled; clock:
    monotonic seconds."""

    def __init__(
        self,
        nodes: Reflector[FleetNode],
        tracker: TrackerReader,
        our_taints: tuple[str, ...],
        on_change: Callable[[str], None],
        clock: Callable[[], float],
    ) -> None:
        self._nodes = nodes
        self._tracker = tracker
        self._our_taints = frozenset(our_taints)
        self._on_change = on_change
        self._clock = clock
        self._on_node: dict[str, dict[str, str]] = {}  # by node: its pods and the jobs that own them
        self._gone: set[str] = set()  # nodes that were removed while we watched
        self._unknown: dict[str, float] = {}  # unknown nodes of pods, and since when on the clock
        self._ipus: dict[IPU, str] = {}

    # callbacks of the watches

    def note_pod(self, key: str, old: JobPod | None, new: JobPod | None, owner: str) -> None:
        """owner: the job's key."""
        was, now = (pod.spec.node_name if pod is not None else "" for pod in (old, new))
        if was and was != now and (held := self._on_node.get(was)) is not None:
            held.pop(key, None)
            if not held:
                del self._on_node[was]
                self._gone.discard(was)
                self._unknown.pop(was, None)
        if now:
            self._on_node.setdefault(now, {})[key] = owner

    def note_node(self, name: str, old: FleetNode | None, new: FleetNode | None) -> None:
        if name not in self._on_node:
            return
        self._unknown.pop(name, None)
        if new is None:
            self._gone.add(name)
        else:
            self._gone.discard(name)
        if (
            old is None
            or new is None
            or find_node_problem(old, self._our_taints) != find_node_problem(new, self._our_taints)
        ):
            for key in sorted(set(self._on_node[name].values())):
                self._on_change(key)

    def note_quarantine(self, data: Mapping[str, str]) -> None:
        ipus = read_quarantine(data)
        changed = {each for each in ipus.keys() | self._ipus.keys() if ipus.get(each) != self._ipus.get(each)}
        self._ipus = ipus
        for key in sorted(
            {job_key(entry) for _, entry in self._tracker.all() if entry.job and changed & ipus_of(entry)}
        ):
            self._on_change(key)

    # input of decisions

    def bad_nodes(self, pods: Iterable[JobPod]) -> dict[str, NodeProblem]:
        """Problems by node name."""
        found = {}
        for name in {pod.spec.node_name for pod in pods if pod.spec.node_name}:
            node = self._nodes.store.get(name)
            if node is not None:
                if (bad := find_node_problem(node, self._our_taints)) is not None:
                    found[name] = bad
            elif self._nodes.synced and self._is_gone(name):
                found[name] = NodeProblem("Gone", "it is no longer in the cluster")
        return found

    def bad_ipus(self, entries: Mapping[str, PartitionEntry]) -> dict[str, tuple[str, ...]]:
        """Problems by partition."""
        if not self._ipus:
            return {}
        by_name = {name: sorted(ipus_of(entry) & self._ipus.keys()) for name, entry in entries.items()}
        return {name: tuple(self._ipus[each] for each in bad) for name, bad in by_name.items() if bad}

    def again_s(self, pods: Iterable[JobPod]) -> float | None:
        """Seconds until an unknown node counts as gone."""
        rests = [
            self._unknown[pod.spec.node_name] + UNKNOWN_S - self._clock()
            for pod in pods
            if pod.spec.node_name in self._unknown
        ]
        return min((rest for rest in rests if rest > 0), default=None)

    def _is_gone(self, name: str) -> bool:
        since = self._unknown.setdefault(name, self._clock())
        return name in self._gone or self._clock() - since >= UNKNOWN_S
