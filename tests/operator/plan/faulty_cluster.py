"""A played cluster whose nodes and IPUs go bad: pods are placed, and end as long as their node lives."""

from dataclasses import dataclass, field

import msgspec
from tests.operator.plan.simulated_cluster import OperatorDied, SimulatedCluster

from muster_kube.api.times import rfc3339_whole
from muster_operator.job import names
from muster_operator.job.partition_api import PartitionRefusal
from muster_operator.job.snapshot import Action, DeletePod, NodeCapacity, NodeProblem, QueryCapacity, Snapshot
from muster_operator.job.types import IPUJob

TAINTED = NodeProblem("Faulty", "check pciebw: LowBandwidth")
NOT_READY = NodeProblem("NotReady", "it is not Ready (NodeStatusUnknown)")
GONE = NodeProblem("Gone", "it is not in the cluster any more")
ROUND_S = 5.0


@dataclass
class FaultyCluster(SimulatedCluster):
    """bad_ipus: by partition; elsewhere: partitions that there is room for beside those in use; grace: what removals
    asked for, by pod; asked: how often the proxy was asked for room."""

    nodes: tuple[str, ...] = ("node-a", "node-b", "node-c")
    bad: dict[str, NodeProblem] = field(default_factory=dict)
    bad_ipus: dict[str, tuple[str, ...]] = field(default_factory=dict)
    elsewhere: int = 4
    rooms: dict[str, int] = field(default_factory=dict)
    grace: list[tuple[str, int | None]] = field(default_factory=list)
    asked: int = 0

    def snapshot(
        self, job: IPUJob, foreign: dict[tuple[str, str], str], refusals: dict[str, PartitionRefusal]
    ) -> Snapshot:
        plain = super().snapshot(job, foreign, refusals)
        under = {pod.spec.node_name for pod in plain.pods.values()}
        healthy = len([node for node in self.nodes if node not in self.bad])
        return Snapshot(
            **{
                **vars(plain),
                "node_capacity": NodeCapacity(nodes=len(self.nodes), healthy=healthy),
                "bad_nodes": {name: bad for name, bad in self.bad.items() if name in under},
                "bad_ipus": {name: ipus for name, ipus in self.bad_ipus.items() if name in plain.entries},
                "room": self.rooms.get(job.metadata.uid),
            }
        )

    def act(
        self, uid: str, action: Action, foreign: dict[tuple[str, str], str], refusals: dict[str, PartitionRefusal]
    ) -> bool:
        if isinstance(action, QueryCapacity):
            news = uid not in self.rooms
            self.asked += news
            self.rooms.setdefault(uid, self.elsewhere)
            return news
        if isinstance(action, DeletePod):
            key = (self.jobs[uid].metadata.namespace, action.name)
            if (pod := self.pods.get(key)) is None or pod.metadata.uid != action.uid:
                return False
            if action.grace_s == 0:
                del self.pods[key]
                self.grace.append((action.name, 0))
                self._wrote()
                return True  # the watch tells
            if not pod.metadata.deletion_timestamp:
                self.grace.append((action.name, action.grace_s))
                if action.grace_s:
                    self._goes_at(key, self.now + action.grace_s)
                    self._wrote()
                    return False
        return super().act(uid, action, foreign, refusals)

    def _goes_at(self, key: tuple[str, str], at: float) -> None:
        """The end of its grace period is its deletionTimestamp."""
        metadata = msgspec.structs.replace(self.pods[key].metadata, deletion_timestamp=rfc3339_whole(at))
        self.pods[key] = msgspec.structs.replace(self.pods[key], metadata=metadata)

    def place(self) -> None:
        """Workers of different indices on different nodes, as long as there are enough."""
        good = [node for node in self.nodes if node not in self.bad]
        for (namespace, name), pod in sorted(self.pods.items()):
            if not pod.spec.node_name and good and not pod.metadata.deletion_timestamp:
                number = name.rpartition("-")[2]
                node = good[(int(number) if number.isdigit() else 0) % len(good)]
                self.pods[namespace, name] = msgspec.structs.replace(
                    pod, spec=msgspec.structs.replace(pod.spec, node_name=node)
                )
                self.set_phase((namespace, name), "Running")

    def settle_partitions(self) -> None:
        for name, entry in self.tracker.items():
            if entry.state == "creating" and entry.attempt:
                self.bad_ipus.pop(name, None)  # the proxy puts it elsewhere
        super().settle_partitions()

    def end_deletions(self) -> None:
        for key, pod in list(self.pods.items()):
            if pod.metadata.deletion_timestamp and pod.spec.node_name not in self._dead():
                del self.pods[key]

    def _dead(self) -> set[str]:
        return {name for name, bad in self.bad.items() if bad.kind != "Faulty"}

    def live(self, rounds: int = 8) -> None:
        """Operator, V-IPU, scheduler and kubelets get on; who died is followed by another."""
        for _ in range(rounds):
            for uid in list(self.jobs):
                try:
                    self.turn(uid)
                except OperatorDied:
                    self.rooms.clear()  # what was only in its memory
                    self.turn(uid)
            self.settle_partitions()
            self.end_deletions()
            self.place()
            self.now += ROUND_S

    def hour(self) -> None:
        self.now += 3600.0
        self.rooms.clear()

    def evict(self, name: str, grace_s: int = 0) -> None:
        """As the node lifecycle controller does."""
        for key, pod in self.pods.items():
            if pod.spec.node_name == name and not pod.metadata.deletion_timestamp:
                self._goes_at(key, self.now + grace_s)

    def where(self, *instances: int) -> dict[str, str]:
        """Nodes by pod; of these instances only, where some are given."""
        wanted = {str(each) for each in instances}
        return {
            name: pod.spec.node_name
            for (_, name), pod in sorted(self.pods.items())
            if not wanted or pod.metadata.labels.get(names.INSTANCE) in wanted
        }
