"""An API server of a few Nodes and Jobs, in memory, for tests of who repairs: it can lose a leader at any call."""

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec
from prometheus_client import CollectorRegistry
from tests.tainter.fake_fleet import FakeFleet

from muster_kube.api.errors import AlreadyExists, Conflict, NotFound, Unreachable
from muster_kube.api.list_decoder import ListPage
from muster_kube.api.objects import Metadata, Node, NodeSpec, Taint
from muster_kube.api.times import rfc3339_whole
from muster_tainter.faults.messages import Notice
from muster_tainter.faults.record.node_record import (
    ANNOTATION,
    ClosedFault,
    Fault,
    NodeRecord,
    OurTaint,
    encode_record,
    read_record,
)
from muster_tainter.fleet.replica import Replica
from muster_tainter.policy.rules import Policy
from muster_tainter.repair.repair_executor import RepairExecutor
from muster_tainter.repair.repair_plan import active_attempt

TAINT = Taint(key="muster.dev/faulty", value="true", effect="NoSchedule")
OURS = OurTaint(key=TAINT.key, effect=TAINT.effect, value=TAINT.value)
NODES = "/api/v1/nodes"
GPU = "gpu/0000:3b:00.0"
_MEDIK8S = (
    ("self-node-remediation", "SelfNodeRemediation"),
    ("machine-deletion-remediation", "MachineDeletionRemediation"),
)
# what the server says of the kinds that it has
KINDS: dict[str, list[dict[str, Any]]] = {
    "/apis/example.com/v1": [
        {"name": "remedies/status", "kind": "Remedy"},
        {"name": "remedies", "kind": "Remedy", "namespaced": True},
    ],
    **{
        f"/apis/{group}.medik8s.io/v1alpha1": [{"name": f"{kind.lower()}s", "kind": kind, "namespaced": True}]
        for group, kind in _MEDIK8S
    },
}


class Died(BaseException):
    """The leader was killed at this call."""


@dataclass
class FakeCluster:
    """nodes: as the server has them; seen: as the leader's watch has; objects: by path; made: paths in the order of
    their making; fail: asked before and after each write, may raise."""

    now: float = 1_800_000_000.0
    nodes: dict[str, Node] = field(default_factory=dict)
    seen: dict[str, Node] = field(default_factory=dict)
    objects: dict[str, dict[str, Any]] = field(default_factory=dict)
    made: list[str] = field(default_factory=list)
    busy: set[str] = field(default_factory=set)
    told: list[tuple[str, Notice]] = field(default_factory=list)
    withheld: str = ""
    repairs_in: str = ""
    fail: Callable[[str], None] = lambda _: None
    versions: Any = field(default_factory=lambda: itertools.count(1))
    serial: Any = field(default_factory=lambda: itertools.count(1))

    # what others do

    def add(self, name: str, **labels: str) -> None:
        meta = Metadata(name=name, uid=f"uid-{name}", resource_version=self._version(), labels=labels)
        self.nodes[name] = self.seen[name] = Node(metadata=meta)

    def _version(self) -> str:
        return str(next(self.versions))

    def memory(self, name: str) -> NodeRecord:
        return read_record(self.nodes[name])

    def remember(self, name: str, memory: NodeRecord, *, tainted: bool | None = None) -> None:
        """The controller's own write: faults, and the taint with them."""
        node = self.nodes[name]
        tainted = bool(memory.open) if tainted is None else tainted
        text = encode_record(msgspec.structs.replace(memory, ours=(OURS,) if tainted else ()))
        annotations = {**node.metadata.annotations, ANNOTATION: text}
        meta = msgspec.structs.replace(
            node.metadata,
            annotations={key: value for key, value in annotations.items() if value is not None},
            resource_version=self._version(),
        )
        self.nodes[name] = Node(metadata=meta, spec=NodeSpec(taints=(TAINT,) if tainted else ()))

    def open_fault(self, name: str, fault_class: str = "reset", component: str = GPU, **more: Any) -> None:
        memory = self.memory(name)
        number = next(self.serial)
        fault = Fault(check="dmesg", component=component, reason=f"Xid{number}", occurrence=number,
                      fault_class=fault_class, since=rfc3339_whole(self.now), **more)  # fmt: skip
        self.remember(name, msgspec.structs.replace(memory, open=(*memory.open, fault)))

    def close_faults(self, name: str, how: str = "driver") -> None:
        memory = self.memory(name)
        at = rfc3339_whole(self.now)
        closed = tuple(ClosedFault(check=f.check, component=f.component, reason=f.reason, occurrence=f.occurrence,
                              closed_at=at, how=how) for f in memory.open)  # fmt: skip
        self.remember(name, msgspec.structs.replace(memory, open=(), closed=(*closed, *memory.closed)[:8]))

    def end_jobs(self, outcome: str, names: tuple[str, ...] = ()) -> None:
        for path in names or tuple(self.objects):
            if not self.objects[path].get("status"):
                self.objects[path]["status"] = {"conditions": [{"type": outcome, "status": "True"}]}

    def catch_up(self) -> None:
        """The leader's watch brings everything."""
        self.seen.clear()
        self.seen.update(self.nodes)

    def under_repair(self) -> list[str]:
        return [name for name in self.nodes if active_attempt(self.memory(name)) is not None]

    def unfinished(self) -> set[str]:
        return {path for path, body in self.objects.items() if not body.get("status")}

    # a leader, and what it asks for

    def leader(self, policy: Policy) -> RepairExecutor:
        return RepairExecutor(
            self,  # type: ignore[arg-type]  # as much of a client as is called
            self.fleet(policy),
            self.replica(),
            CollectorRegistry(),
            evictor=self,  # type: ignore[arg-type]  # an Evictor that knows
        )

    def fleet(self, policy: Policy) -> FakeFleet:
        """As the leader's watch has it."""
        return FakeFleet(
            policy, self.seen, observe_node=self._observe, withheld=lambda: self.withheld, notices=self.told
        )

    def replica(self) -> Replica:
        return Replica(
            may_write=lambda: True,
            namespace="muster",
            repairs_in=self.repairs_in,
            now=lambda: self.now,
            clock=lambda: self.now,
        )

    def _observe(self, node: Node) -> None:
        self.seen[node.metadata.name] = node

    def is_empty(self, name: str) -> bool:
        return name not in self.busy

    async def look_anew(self, name: str) -> bool:
        return name not in self.busy

    async def list_page(self, path: str, kind: Any, **_: Any) -> Any:
        assert path == NODES
        return ListPage([node for node in self.nodes.values() if "muster.dev/repair" in node.metadata.labels], "1")

    async def get(self, path: str, *, type: Any, **_: Any) -> Any:
        if path.startswith(NODES):
            return self.nodes[path.removeprefix(f"{NODES}/")]
        if path in KINDS:
            return msgspec.convert({"resources": KINDS[path]}, type)
        if path not in self.objects:
            raise NotFound(404, "NotFound", "no such object", path)
        return msgspec.json.decode(msgspec.json.encode(self.objects[path]), type=type)

    async def create(self, path: str, body: Any, **_: Any) -> Any:
        name = f"{path}/{body['metadata']['name']}"
        self.fail(f"before create {name}")
        if name in self.objects:
            raise AlreadyExists(409, "AlreadyExists", "it is there", name)
        kept: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(body))
        kept["metadata"]["uid"] = f"uid-{name}-{len(self.made)}"
        self.objects[name] = kept
        self.made.append(name)
        self.fail(f"after create {name}")

    async def delete(self, path: str, body: Any, **_: Any) -> Any:
        self.fail(f"before delete {path}")
        assert body["preconditions"]["uid"] == self.objects[path]["metadata"]["uid"]
        del self.objects[path]
        self.fail(f"after delete {path}")

    async def patch(self, path: str, body: Any, **_: Any) -> Node:
        self.fail(f"before patch {path}")
        node = self.nodes[path.removeprefix(f"{NODES}/")]
        meta = body["metadata"]
        if meta["resourceVersion"] != node.metadata.resource_version:
            raise Conflict(409, "Conflict", "it is another one", path)
        merged = {}
        for what, old in (("labels", node.metadata.labels), ("annotations", node.metadata.annotations)):
            both = {**old, **meta[what]}
            merged[what] = {key: value for key, value in both.items() if value is not None}
        changed = msgspec.structs.replace(node.metadata, **merged, resource_version=self._version())
        self.nodes[node.metadata.name] = msgspec.structs.replace(node, metadata=changed)
        self.fail(f"after patch {path}")
        return self.nodes[node.metadata.name]


def unreachable() -> Unreachable:
    return Unreachable("nobody answers", "")
