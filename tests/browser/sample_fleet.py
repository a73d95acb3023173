"""A fleet as values: thousands of nodes in pools and racks, and a bad night among them; their GPUs, if asked for.

What stands on the nodes is what the tainter's own decisions write, so the page shows what it would show.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec

from muster_kube.api.objects import Metadata, Node, NodeCondition, NodeSpec, NodeStatus, Taint
from muster_kube.api.times import rfc3339, rfc3339_whole
from muster_kube.nodehealth import (
    AgentIdentity,
    CheckRequest,
    ClearedFault,
    NodeHealth,
    NodeHealthSpec,
    NodeHealthStatus,
    ReportedCheck,
    ReportedFinding,
    ReportedMeasurement,
)
from muster_tainter.faults.decision_context import AssignedRole, DecisionContext, DeviceContext, KnownDevice
from muster_tainter.faults.desired_state import decide
from muster_tainter.faults.record.check_history import ANNOTATION as TESTS
from muster_tainter.faults.record.check_history import MANAGER, CheckHistory, CheckRecord, encode_history
from muster_tainter.policy.file import parse_policy
from muster_tainter.policy.rules import STARTUP_KEY, Policy
from muster_tainter.policy.spares import SpareRole

RACK = "topology.kubernetes.io/rack"
POOL = "example.com/pool"
KERNEL = "dmesg"
CHECKS = (KERNEL, "disk", "gpucount", "gpuecc", "gpupower", "gputemp", "memory", "nic", "nvlink", "pcielink", "ping")

POLICY = """
rules:
  - {name: hardware, match: {verdict: FAIL, class: [reset, reboot, replace, contact]}, action: taint}
  - {name: other-failures, match: {verdict: FAIL}, action: event}
  - {name: warnings, match: {verdict: WARN}, action: event}
pools:
  - name: h100
    selector: {matchLabels: {example.com/pool: h100}}
    domain: topology.kubernetes.io/rack
    budget: {tainted: 3%, perDomain: 25%, rate: {nodes: 2%, within: 10m}}
    spares: {nodes: 2, checks: [pciebw], readyWithin: 1d}
  - name: a100
    selector: {matchLabels: {example.com/pool: a100}}
    domain: topology.kubernetes.io/rack
    budget: {tainted: 5%}
  - name: ipu
    selector: {matchLabels: {example.com/pool: ipu}}
    domain: topology.kubernetes.io/rack
    budget: {tainted: 10%}
"""
DRIVER = "gpu.nvidia.com"
PCI = "resource.kubernetes.io/pciBusID"
BUSES = ("1b", "3b", "4c", "5e", "9b", "bb", "cb", "db")  # of the eight GPUs of a node
SHARES = {"h100": (0.48, 32), "a100": (0.36, 40), "ipu": (0.16, 20)}  # of the fleet; nodes of a rack


@dataclass
class SampleFleet:
    """nodes and healths by name; ``now``: seconds since the epoch."""

    policy: Policy
    now: float
    nodes: dict[str, Node] = field(default_factory=dict)
    healths: dict[str, NodeHealth] = field(default_factory=dict)
    slices: dict[str, dict[str, Any]] = field(default_factory=dict)  # ResourceSlices by node
    version: int = 1

    def _next(self) -> str:
        self.version += 1
        return str(self.version)

    def add(self, name: str, pool: str, rack: str) -> None:
        labels = {POOL: pool, RACK: rack, "muster.dev/health": "pass"}
        self.nodes[name] = Node(metadata=Metadata(name=name, resource_version=self._next(), labels=labels))
        checks = tuple(ReportedCheck(name=check, verdict="PASS") for check in CHECKS)
        seen = rfc3339(self.now - 4 * 3600)
        status = NodeHealthStatus(verdict="PASS", checks=checks, boot_id="7c1d", observed_at=seen, idle_since=seen)
        self.healths[name] = NodeHealth(metadata=Metadata(name=name, resource_version=self._next()), status=status)

    def report(self, name: str, check: str, *findings: ReportedFinding, cleared: tuple[ClearedFault, ...] = ()) -> None:
        """The agent of the node says so of one of its checks."""
        known = self.healths[name]
        order = ("FAIL", "WARN", "UNKNOWN", "PASS")
        of_check = min((f.verdict for f in findings), key=order.index, default="PASS")
        others = [c for c in known.status.checks if c.name != check]
        checks = (*others, ReportedCheck(name=check, verdict=of_check, findings=findings, cleared=cleared))
        verdict = min((c.verdict for c in checks), key=order.index)
        seen = rfc3339(self.now)
        status = msgspec.structs.replace(known.status, verdict=verdict, checks=checks, observed_at=seen)
        self._health(name, status=status)

    def silent(self, name: str) -> None:
        """No agent has reported."""
        self._health(name, status=NodeHealthStatus())

    def ask(self, name: str, check: str, manager: str = MANAGER, identity: str = "plan-1") -> None:
        self._health(name, spec=NodeHealthSpec(requests=(CheckRequest(id=identity, checks=(check,), by=manager),)))

    def _health(self, name: str, **fields: object) -> None:
        metadata = msgspec.structs.replace(self.healths[name].metadata, resource_version=self._next())
        self.healths[name] = msgspec.structs.replace(self.healths[name], metadata=metadata, **fields)

    def put(self, name: str, **fields: object) -> None:
        metadata = msgspec.structs.replace(self.nodes[name].metadata, resource_version=self._next())
        self.nodes[name] = msgspec.structs.replace(self.nodes[name], **{"metadata": metadata, **fields})

    def label(self, name: str, **labels: str) -> None:
        known = self.nodes[name].metadata
        named = {key.replace("_", "/", 1).replace("muster/", "muster.dev/"): value for key, value in labels.items()}
        metadata = msgspec.structs.replace(known, labels=known.labels | named, resource_version=self._next())
        self.nodes[name] = msgspec.structs.replace(self.nodes[name], metadata=metadata)

    def settle(self, name: str, withhold: str = "", at: float = 0.0) -> None:
        """What the leader writes about the node: taints, labels, annotation and condition."""
        node = self.nodes[name]
        decision = decide(node, self.healths[name], self.policy, at or self.now, {}, DecisionContext(withhold=withhold))
        written = decision.applied(node)
        conditions: tuple[NodeCondition, ...] = () if decision.condition is None else (decision.condition,)
        self.nodes[name] = msgspec.structs.replace(written, status=NodeStatus(conditions=conditions))
        self.put(name)

    def give_gpus(self, *names: str) -> None:
        """Their driver publishes eight GPUs each, and the policy keeps bad ones out alone."""
        self.policy = parse_policy(f"{POLICY}devices: {{quarantine: rules}}\n")
        for name in names:
            devices = [
                {"name": f"gpu-{number}", "attributes": {PCI: {"string": f"0000:{bus}:00.0"}}}
                for number, bus in enumerate(BUSES)
            ]
            pool = {"name": name, "generation": 1, "resourceSliceCount": 1}
            spec = {"driver": DRIVER, "nodeName": name, "pool": pool, "devices": devices}
            self.slices[name] = {"metadata": {"name": f"{name}-gpus", "resourceVersion": self._next()}, "spec": spec}

    def taint_gpu(self, name: str, number: int, value: str = "79", effect: str = "NoSchedule", ago: float = 0) -> None:
        """Its driver does."""
        at = rfc3339_whole(self.now - ago)
        taint = {"key": f"{DRIVER}/xid", "value": value, "effect": effect, "timeAdded": at}
        self.slices[name]["spec"]["devices"][number]["taints"] = [taint]

    def keep_out(self, name: str, finding: ReportedFinding, *, ago: float = 0.0) -> None:
        """A fault of one GPU, for which the leader keeps out only that."""
        at = self.now - ago
        self.report(name, KERNEL, msgspec.structs.replace(finding, first_seen=rfc3339(at), last_seen=rfc3339(at)))
        known = {finding.component.partition("/")[2]: KnownDevice(DRIVER, len(BUSES), ruled=True)}
        context = DecisionContext(devices=DeviceContext(known=known))
        decision = decide(self.nodes[name], self.healths[name], self.policy, at, {}, context)
        conditions: tuple[NodeCondition, ...] = () if decision.condition is None else (decision.condition,)
        written = decision.applied(self.nodes[name])
        self.nodes[name] = msgspec.structs.replace(written, status=NodeStatus(conditions=conditions))
        self.put(name)

    def assign(
        self, name: str, role: SpareRole, replaces: str = "", *, tested_ago: float = 3600.0, ago: float = 0.0
    ) -> None:
        """The leader gives an idle node that passes this role among the spares; its last full test was so long ago."""
        ready = NodeStatus(conditions=(NodeCondition(type="Ready", status="True"),))
        past = CheckHistory(checks={"pciebw": CheckRecord(at=rfc3339_whole(self.now - tested_ago))})
        known = self.healths[name]
        metadata = msgspec.structs.replace(known.metadata, annotations={TESTS: encode_history(past)})
        self.healths[name] = msgspec.structs.replace(known, metadata=metadata)
        self._health(name, status=msgspec.structs.replace(known.status, agent=AgentIdentity(pod_uid="p")))
        context = DecisionContext(spare=AssignedRole(role, "", replaces=replaces))
        decision = decide(self.nodes[name], self.healths[name], self.policy, self.now - ago, {}, context)
        self.nodes[name] = msgspec.structs.replace(decision.applied(self.nodes[name]), status=ready)
        self.put(name)

    def break_node(
        self, name: str, check: str, finding: ReportedFinding, *, ago: float = 0.0, withhold: str = ""
    ) -> None:
        at = self.now - ago
        self.report(name, check, msgspec.structs.replace(finding, first_seen=rfc3339(at), last_seen=rfc3339(at)))
        self.settle(name, withhold, at)


def failure(
    component: str, reason: str, fault_class: str, message: str, *measured: ReportedMeasurement
) -> ReportedFinding:
    return ReportedFinding(
        component=component,
        reason=reason,
        verdict="FAIL",
        fault_class=fault_class,
        message=message,
        measurements=measured,
    )


def xid(number: int, bus: str, fault_class: str, said: str) -> ReportedFinding:
    """As the driver's line in the kernel log gives it."""
    return failure(f"gpu/{bus}", f"Xid{number}", fault_class, f"NVRM: Xid (PCI:{bus[:-2]}): {number}, {said}")


def xid79(bus: str = "0000:3b:00.0", occurrence: int = 1) -> ReportedFinding:
    fallen = xid(79, bus, "reboot", "pid=418231, name=python3, GPU has fallen off the bus.")
    return msgspec.structs.replace(fallen, occurrence=occurrence)


XID48 = xid(48, "0000:5e:00.0", "reset", "pid=90112, name=train, DBE (Double Bit Error) ECC Error")
XID31 = xid(31, "0000:3b:00.0", "restart-app", "pid=7120, name=infer, Ch 00000012, MMU Fault")
LINK_DOWN = failure(
    "nic/mlx5_3", "LinkDown", "contact",
    "mlx5_3 port 1: state DOWN, physical state Polling; expected ACTIVE at 400 Gb/s",
    ReportedMeasurement("rate", 0.0, "Gb/s", 400.0), ReportedMeasurement("link_downed", 14.0, "", 3.0),
)  # fmt: skip
SLOW = failure(
    "gpu/0000:9b:00.0", "BandwidthLow", "reset",
    "host to device 11.4 GB/s, expected at least 44 GB/s: PCIe 5.0 x16 runs as x4",
    ReportedMeasurement("h2d", 11.4, "GB/s", 44.0), ReportedMeasurement("d2h", 12.1, "GB/s", 44.0),
)  # fmt: skip
MISSING = failure(
    "host", "GpusMissing", "replace",
    "7 of 8 GPUs are on the PCI bus: nothing at 0000:db:00.0",
    ReportedMeasurement("gpus", 7.0, "", 8.0),
)  # fmt: skip
IPU_LINK = failure(
    "ipu/10.44.7.12/1", "LinkDegraded", "reset", "IPU link of board 1 to 10.44.7.13 trained at x4, expected x8"
)
HOT = ReportedFinding(
    component="gpu/0000:cb:00.0",
    reason="Hot",
    verdict="WARN",
    message="87 °C, slows down at 90 °C",
    measurements=(ReportedMeasurement("temperature", 87.0, "°C", 85.0),),
)
NO_TOOL = ReportedFinding(component="host", reason="ToolMissing", verdict="UNKNOWN", message="dcgmi: not found in PATH")


def make_fleet(count: int, now: float) -> SampleFleet:
    """All of them pass."""
    fleet = SampleFleet(parse_policy(POLICY), now)
    left = count
    for pool, (share, of_rack) in SHARES.items():
        size = left if pool == "ipu" else round(count * share)
        left -= size
        for number in range(size):
            rack = f"{pool[0]}{number // of_rack + 1:03d}"
            fleet.add(f"{pool}-{rack}-{number % of_rack + 1:02d}", pool, rack)
    return fleet


def bad_night(fleet: SampleFleet, seed: int = 7) -> SampleFleet:
    """Some of everything: one rack whose switch failed, and what a fleet of this size has anyway."""
    rng = random.Random(seed)
    healthy = [name for name in fleet.nodes if not name.startswith("h100-h087")]
    rng.shuffle(healthy)
    left = iter(healthy)
    rack = [name for name in fleet.nodes if name.startswith("h100-h087")]
    budget = "budget: pool h100 has 8 of 8 nodes with topology.kubernetes.io/rack=h087 tainted (25% of 32)"
    for number, name in enumerate(rack[:19]):
        fleet.break_node(name, "nic", LINK_DOWN, ago=260.0 - number, withhold=budget if number >= 8 else "")
    _history(fleet, rack[3])
    for finding, check, times in (
        (xid79(), KERNEL, 9),
        (XID48, KERNEL, 5),
        (SLOW, "pciebw", 4),
        (MISSING, "gpucount", 3),
        (XID31, KERNEL, 6),
    ):
        for name in _some(left, times, ("h100", "a100")):
            fleet.break_node(name, check, finding, ago=rng.uniform(60, 30 * 3600))
    for name in _some(left, 3, ("ipu",)):
        fleet.break_node(name, "ipulink", IPU_LINK, ago=rng.uniform(600, 9000))
    for name in _some(left, 5, ("h100",)):
        fleet.break_node(name, KERNEL, XID48, ago=rng.uniform(3600, 7200))
        fleet.ask(name, "gpumem", "muster-tainter-proof", f"proof-0123456789-{int(fleet.now) - 40}")
    for name in _some(left, 37):
        fleet.break_node(name, "gputemp", HOT, ago=rng.uniform(60, 9000))
    for name in _some(left, 11):
        fleet.break_node(name, "dcgm", NO_TOOL, ago=rng.uniform(600, 90000))
    for name in _some(left, 4):
        fleet.silent(name)
        fleet.settle(name)
    for name in _some(left, max(4, len(healthy) // 60)):
        fleet.ask(name, rng.choice(("pciebw", "gpumem", "dcgm")))
    for name in _some(left, 6):
        fleet.put(name, spec=NodeSpec(taints=(Taint(key=STARTUP_KEY, effect="NoSchedule", value="true"),)))
    for name in _some(left, 3):
        fleet.label(name, muster_managed="false")
    return fleet


def _some(names: Iterator[str], count: int, pools: tuple[str, ...] = ("h100", "a100", "ipu")) -> list[str]:
    chosen: list[str] = []
    for name in names:
        if name.startswith(pools):
            chosen.append(name)
            if len(chosen) == count:
                break
    return chosen


def _history(fleet: SampleFleet, name: str) -> None:
    """It was tainted before, and came back each time."""
    node = fleet.nodes[name]
    open_now, condition = node.metadata, node.status
    closed = [
        {
            "check": KERNEL, "component": "gpu/0000:3b:00.0", "reason": "Xid79", "occurrence": 2, "rule": "hardware",
            "closedAt": rfc3339_whole(fleet.now - 7.2 * 3600), "since": rfc3339_whole(fleet.now - 8.1 * 3600),
            "how": "boot", "by": "boot 7c1d", "message": xid79().message,
        },
        {
            "check": "pciebw", "component": "gpu/0000:9b:00.0", "reason": "BandwidthLow", "occurrence": 1,
            "closedAt": rfc3339_whole(fleet.now - 20 * 3600), "since": rfc3339_whole(fleet.now - 22 * 3600),
            "how": "person", "by": "ada@example.com", "rule": "hardware", "message": SLOW.message,
        },
    ]  # fmt: skip
    memory = msgspec.json.decode(open_now.annotations["muster.dev/faults"]) | {"closed": closed}
    annotations = open_now.annotations | {"muster.dev/faults": msgspec.json.encode(memory).decode()}
    fleet.put(name, metadata=msgspec.structs.replace(open_now, annotations=annotations), status=condition)
