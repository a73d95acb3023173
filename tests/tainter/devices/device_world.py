"""Nodes with GPUs, their ResourceSlices, and an API server of DeviceTaintRules in memory that can end a leader at any
write."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec
from tests.tainter.fake_fleet import FakeFleet

from muster_kube.api.errors import AlreadyExists, Conflict, NotFound
from muster_kube.api.objects import Metadata, Node
from muster_kube.nodehealth import NodeHealth, NodeHealthStatus, ReportedCheck, ReportedFinding
from muster_tainter.devices.api_versions import DeviceApi
from muster_tainter.devices.board_history import BoardHistory
from muster_tainter.devices.device_view import DeviceView
from muster_tainter.devices.rules.plan import staged_faults
from muster_tainter.devices.rules.store import RuleStore
from muster_tainter.devices.rules.taint_rule import DeviceTaintRule, slim_rule
from muster_tainter.devices.rules.writer import RuleWriter
from muster_tainter.devices.slices.index import SliceIndex
from muster_tainter.devices.slices.resource_slice import ResourceSlice, slim_slice
from muster_tainter.faults.decision_context import DecisionContext
from muster_tainter.faults.desired_state import Decision, decide
from muster_tainter.fleet.replica import Replica
from muster_tainter.policy.file import parse_policy

API = DeviceApi("v1beta2", "v1")
RULES = API.rules
PCI = "resource.kubernetes.io/pciBusID"
DRIVER = "gpu.nvidia.com"
POLICY = """
rules:
  - {name: first, match: {reason: First}, action: taint, isolate: device-first}
  - {name: hardware, match: {class: [reset, reboot, replace]}, action: taint}
devices: {quarantine: rules, share: 50%, grace: 10m}
"""


def address(number: int) -> str:
    return f"0000:{16 * (number + 1) + 3:02x}:00.0"


def gpu(number: int) -> str:
    return f"gpu/{address(number)}"


def uuid(number: int) -> str:
    return f"GPU-0000000{number}-aaaa-bbbb-cccc-000000000000"


def device(number: int, name: str = "", **attributes: str) -> dict[str, Any]:
    found = {PCI: address(number), "uuid": uuid(number)} | attributes
    return {
        "name": name or f"gpu-{number}",
        "attributes": {key: {"string": text} for key, text in found.items()} | {"minor": {"int": number}},
    }


def resource_slice(
    node: str = "n1",
    devices: list[dict[str, Any]] | None = None,
    *,
    name: str = "",
    driver: str = DRIVER,
    pool: str = "",
    generation: int = 1,
    count: int = 1,
) -> dict[str, Any]:
    """As a driver publishes it; four GPUs by default."""
    return {
        "metadata": {"name": name or f"{node}-{driver}", "resourceVersion": "1"},
        "spec": {
            "driver": driver,
            "nodeName": node,
            "pool": {"name": pool or node, "generation": generation, "resourceSliceCount": count},
            "devices": [device(number) for number in range(4)] if devices is None else devices,
        },
    }


def read_slice(found: dict[str, Any]) -> ResourceSlice:
    return slim_slice(msgspec.json.decode(msgspec.json.encode(found), type=ResourceSlice))


def finding(number: int = 0, fault_class: str = "reset", occurrence: int = 1, **fields: Any) -> ReportedFinding:
    values = {"component": gpu(number), "reason": "Xid95", "verdict": "FAIL"} | fields
    return ReportedFinding(fault_class=fault_class, occurrence=occurrence, **values)


def health(*findings: ReportedFinding, boot: str = "boot-1", idle: bool = False) -> NodeHealth:
    check = ReportedCheck(name="dmesg", verdict="FAIL" if findings else "PASS", findings=findings)
    status = NodeHealthStatus(
        verdict=check.verdict, checks=(check,), boot_id=boot, idle_since="2026-01-01T00:00:00Z" if idle else ""
    )
    return NodeHealth(metadata=Metadata(name="n1"), status=status)


class Died(BaseException):
    """The leader was killed at this write."""


@dataclass
class FakeRules:
    """The API server's DeviceTaintRules and Nodes. strike: called before (False) and after (True) each write."""

    nodes: dict[str, Node]
    rules: dict[str, dict[str, Any]] = field(default_factory=dict)
    strike: Callable[[bool], None] = lambda _applied: None
    version: int = 100
    writes: list[str] = field(default_factory=list)

    async def get(self, path: str, *, type: Any) -> Any:
        name = path.rpartition("/")[2]
        if path.startswith("/api/v1/nodes/"):
            if name not in self.nodes:
                raise NotFound(404, "NotFound", name, path)
            return self.nodes[name]
        if name not in self.rules:
            raise NotFound(404, "NotFound", name, path)
        return msgspec.json.decode(msgspec.json.encode(self.rules[name]), type=type)

    async def create(self, path: str, body: Any, *, type: Any, params: Any) -> Any:
        self.strike(False)
        made = msgspec.json.decode(msgspec.json.encode(body))
        name = made["metadata"]["name"]
        if name in self.rules:
            raise AlreadyExists(409, "AlreadyExists", name, path)
        self.version += 1
        made["metadata"] |= {"uid": f"uid-{self.version}", "managedFields": _managed(params["fieldManager"])}
        self.put(name, made)
        self.writes.append(f"create {name}")
        self.strike(True)
        return await self.get(f"{path}/{name}", type=type)

    async def patch(self, path: str, body: Any, *, type: Any, params: Any) -> Any:
        self.strike(False)
        name, change = path.rpartition("/")[2], msgspec.json.decode(msgspec.json.encode(body))
        if self.rules[name]["metadata"]["resourceVersion"] != change["metadata"]["resourceVersion"]:
            raise Conflict(409, "Conflict", name, path)
        self.put(name, self.rules[name] | {"spec": change["spec"]})
        self.writes.append(f"change {name}")
        self.strike(True)
        return await self.get(path, type=type)

    async def delete(self, path: str, body: Any) -> Any:
        self.strike(False)
        name = path.rpartition("/")[2]
        if name not in self.rules:
            raise NotFound(404, "NotFound", name, path)
        if self.rules[name]["metadata"]["uid"] != body["preconditions"]["uid"]:
            raise Conflict(409, "Conflict", name, path)
        del self.rules[name]
        self.writes.append(f"delete {name}")
        self.strike(True)

    def put(self, name: str, rule: dict[str, Any]) -> None:
        self.version += 1
        rule["metadata"] = rule["metadata"] | {"resourceVersion": str(self.version)}
        self.rules[name] = rule

    def edit(self, name: str, effect: str, manager: str = "kubectl-edit") -> None:
        """As a person does."""
        rule = msgspec.json.decode(msgspec.json.encode(self.rules[name]))
        rule["spec"]["taint"]["effect"] = effect
        rule["metadata"]["managedFields"] += _managed(manager)
        self.put(name, rule)

    def effects(self) -> dict[str, str]:
        """The effect for each device that has a rule, by its name."""
        return {
            rule["spec"]["deviceSelector"]["device"]: rule["spec"]["taint"]["effect"] for rule in self.rules.values()
        }


def _managed(manager: str) -> list[dict[str, Any]]:
    return [{"manager": manager, "operation": "Update", "fieldsV1": {"f:spec": {"f:taint": {"f:effect": {}}}}}]


class Leader:
    """One tainter: decides about node n1 and writes its rules. clock: monotonic seconds, which tests set."""

    def __init__(self, api: FakeRules, slices: dict[str, dict[str, Any]], policy: str = POLICY) -> None:
        self.api = api
        self.clock = 1000.0
        self.now = 1.8e9
        self.fleet = FakeFleet(current=parse_policy(policy), nodes=api.nodes)
        self.slices: dict[str, ResourceSlice] = {}
        self.store = RuleStore(lambda: self.clock)
        self.index = SliceIndex(lambda name: name in api.nodes)
        self.boards = BoardHistory(lambda name, board: board in self.index.devices(name).cards)
        self.view = DeviceView(self.fleet, self.index, self.store, self.boards)
        replica = Replica(lambda: True, clock=lambda: self.clock)
        self.counted: list[str] = []
        self.writer = RuleWriter(
            api,  # type: ignore[arg-type]
            self.fleet,
            replica,
            self.store,
            self.index,
            self._observe,
            self.counted.append,
        )
        self.seen: dict[str, DeviceTaintRule] = {}
        self.unavailable: str | None = ""
        self.see_slices(slices)
        self.see_rules()
        self.store.forget_people()

    def use(self, policy: str) -> None:
        self.fleet.current = parse_policy(policy)

    def see_slices(self, slices: dict[str, dict[str, Any]]) -> None:
        """What the watch of slices delivers."""
        for key in {*self.slices, *slices}:
            new = read_slice(slices[key]) if key in slices else None
            self.index.note(key, self.slices.get(key), new)
            if new is None:
                del self.slices[key]
            else:
                self.slices[key] = new

    def see_rules(self) -> None:
        """What the watch of rules delivers."""
        there = {
            name: slim_rule(msgspec.json.decode(msgspec.json.encode(rule), type=DeviceTaintRule))
            for name, rule in self.api.rules.items()
            if rule["metadata"].get("labels")
        }
        for name in {*self.seen, *there}:
            if self.seen.get(name) != there.get(name):
                self.store.note(self.seen.get(name), there.get(name))
        self.seen = there

    def _observe(self, rule: DeviceTaintRule) -> None:
        slim = slim_rule(rule)
        self.store.note(self.seen.get(slim.metadata.name), slim)
        self.seen[slim.metadata.name] = slim

    def decide(self, health: NodeHealth | None, withhold: str = "", device_withhold: str | None = None) -> Decision:
        node = self.api.nodes["n1"]
        devices = self.view.context(node, self.unavailable, withhold if device_withhold is None else device_withhold)
        return decide(
            node, health, self.fleet.policy(), self.now, {}, DecisionContext(withhold=withhold, devices=devices)
        )

    def apply(self, decision: Decision) -> None:
        """The PATCH of the Node."""
        if decision.writes:
            self.api.nodes["n1"] = decision.applied(self.api.nodes["n1"])
            self.store.settle("n1", staged_faults(self.api.nodes["n1"]))
            self.boards.note("n1", self.api.nodes["n1"])

    async def write_ahead(self, decision: Decision) -> None:
        """While the PATCH of the Node is under way."""
        if decision.isolates:
            await self.writer.write_ahead(decision.applied(self.api.nodes["n1"]), API)

    async def write_rules(self) -> bool:
        return await self.writer.write("n1", API)

    async def settle(self, health: NodeHealth | None, **withheld: str) -> None:
        """Everything until nothing changes any more."""
        for _ in range(12):
            self.see_rules()
            decision = self.decide(health, **withheld)
            self.apply(decision)
            before = len(self.api.writes)
            again = await self.write_rules()
            if not decision.writes and not again and len(self.api.writes) == before:
                return
        raise AssertionError("the decisions do not settle")


def world(policy: str = POLICY, **slices: dict[str, Any]) -> Leader:
    """One node with four GPUs, and its leader."""
    api = FakeRules({"n1": Node(metadata=Metadata(name="n1", resource_version="1"))})
    return Leader(api, slices or {"s": resource_slice()}, policy)


def taints(leader: Leader) -> list[str]:
    return [f"{taint.key}:{taint.effect}" for taint in leader.api.nodes["n1"].spec.taints]


def protected(leader: Leader) -> set[str]:
    """The components that no new job gets: by the node's taint, or by their rules."""
    if taints(leader):
        return {gpu(number) for number in range(4)}
    rules = leader.api.rules.values()
    return {
        rule["metadata"]["annotations"]["muster.dev/component"]
        for rule in rules
        if rule["spec"]["taint"]["effect"] == "NoSchedule"
    }
