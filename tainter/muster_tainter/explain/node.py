"""Explains why a node is tainted or not: for each fault, the chain from the evidence to the action. Pure functions."""

from collections.abc import Collection, Iterator

from muster_checks.base.vocabulary import shorten
from muster_kube.api.objects import Node
from muster_kube.api.times import rfc3339_whole, seconds
from muster_kube.nodehealth import NodeHealth, ReportedFinding, ReportedMeasurement
from muster_tainter.devices.device_states import device_states
from muster_tainter.devices.losses import fault_cost
from muster_tainter.devices.slices.device_map import NO_DEVICES, NodeDevices
from muster_tainter.explain.devices import format_cost, format_devices
from muster_tainter.explain.durations import lasted
from muster_tainter.explain.explanation import ChainLink, FaultChain, NodeExplanation
from muster_tainter.faults.desired_state import FAULTY_LABEL, MANAGED_LABEL, is_managed
from muster_tainter.faults.messages import format_taint, withheld_reason
from muster_tainter.faults.node_report import NodeReport, read_report
from muster_tainter.faults.policy_match import FaultPolicy, confirmed_at, current_penalty, held_until, match_policy
from muster_tainter.faults.record.node_record import (
    ANNOTATION,
    LOST_CHECK,
    ClosedFault,
    DeviceStage,
    Fault,
    NodeRecord,
    UnreadableRecord,
    as_our_taint,
    decode_record,
)
from muster_tainter.policy.recovery import SOURCE_CHECKS, read_proof_request
from muster_tainter.policy.rules import NOT_FOR_FAULTS, SPARE_KEY, STARTUP_KEY, CloseOn, Policy
from muster_tainter.policy.spares import SpareRole
from muster_tainter.spares.facts import node_role
from muster_tainter.spares.plan import TaintSlot
from muster_tainter.verification.messages import format_proof

_NEEDS = {
    "reset": "needs a reset",
    "reboot": "needs a reboot",
    "replace": "needs a replacement part",
    "contact": "needs manual inspection",
}
_WORDS = {
    CloseOn.BOOT: "a reboot after which the check no longer finds it",
    CloseOn.DRIVER: "the driver reporting that it is resolved",
    CloseOn.QUIET: "the check's quiet time passing without a new sign",
    CloseOn.SOURCE: "its source reporting that it is resolved",
}


def explain_node(
    node: Node,
    health: NodeHealth | None,
    policy: Policy,
    now: float,
    *,
    paused: str = "",
    common: Collection[TaintSlot] = (),
    devices: NodeDevices = NO_DEVICES,
) -> NodeExplanation:
    """now: seconds since the epoch; paused: why Muster sets no new taints, as ``muster pause`` recorded it; common:
    taints of others that most nodes of a spare's pool have; devices: of its ResourceSlices."""
    name = node.metadata.name
    if not is_managed(node):
        return NodeExplanation(
            name, "UNMANAGED", f"label {MANAGED_LABEL}=false: Muster ignores this node", paused=paused
        )
    notes = []
    try:
        memory = decode_record(node.metadata.annotations.get(ANNOTATION))
    except UnreadableRecord as error:
        memory = NodeRecord()
        notes.append(f"annotation {ANNOTATION} cannot be read ({error}): the tainter rebuilds it")
    report = read_report(health)
    one = _Node(node, health, memory, report, policy, now, devices)
    states = device_states(node, memory, devices, policy, now)
    chains = sorted((one.chain(fault) for fault in memory.open), key=lambda chain: _STATES.index(chain.state))
    taints = [taint for taint in node.spec.taints if as_our_taint(taint) in memory.ours or taint.key in NOT_FOR_FAULTS]
    open_keys = {fault.key for fault in memory.open}
    closed = [one.closed(entry) for entry in memory.closed if entry.key not in open_keys]
    if not memory.open and node.metadata.labels.get(FAULTY_LABEL):
        notes.append(f"label {FAULTY_LABEL} without an open fault: the tainter removes it")
    role = node_role(node, health, policy, now, common)
    required = [format_taint(taint) for taint in taints if taint.key != SPARE_KEY]
    state, why = _headline(chains, required, one)
    if state == "FREE" and role is not None and role.role is SpareRole.SPARE:
        state = "SPARE"
    return NodeExplanation(
        node=name,
        state=state,
        why=why,
        role=role,
        paused=paused,
        taints=tuple(map(format_taint, taints)),
        others=tuple(format_taint(taint) for taint in node.spec.taints if taint not in taints),
        chains=tuple(chains),
        closed=tuple(closed),
        findings=tuple(one.findings(open_keys)),
        notes=(*notes, *one.notes()),
        do=tuple(_do(one, chains)),
        devices=states,
        device_lines=tuple(format_devices(states, now)),
    )


_STATES = ("tainted", "withheld", "quarantined", "waiting", "open", "held")
_HEADS = {"withheld": "WITHHELD", "held": "HELD"}
_NOT_PROCESSED = "the tainter has not processed it yet"


def _headline(chains: list[FaultChain], taints: list[str], one: "_Node") -> tuple[str, str]:
    if chains:
        worst = chains[0]
        more = f" (and {len(chains) - 1} more)" if len(chains) > 1 else ""
        saw = next((link.text for link in worst.links if link.label == "saw"), "")
        text = f"{worst.fault}{f': {saw}' if saw else ''}{more}"
        since = next((link.text.partition(" ago")[0] for link in worst.links if link.label == "since"), "")
        open_ones = (fault.fault_class for fault in one.memory.open if not fault.over)
        needs = (_NEEDS[fault_class] for fault_class in open_ones if fault_class in _NEEDS)
        asks = "resolved, held because it is flapping" if worst.state == "held" else next(needs, "")
        lead = ", ".join(part for part in (f"for {since}" if since else "", asks) if part)
        text = f"{lead}: {text}" if lead else text
        if worst.state == "withheld":
            text = f"{text.rstrip('.')}; not tainted: {one.withheld or _NOT_PROCESSED}"
        return "TAINTED" if worst.state in ("tainted", "held") and taints else _HEADS.get(worst.state, "FAULTY"), text
    if any(taint.startswith(STARTUP_KEY) for taint in taints):
        return "TAINTED", "new node: waits for its first full pass of checks and for its pool's preFlight checks"
    if taints:
        return "TAINTED", "no open fault requires the taint: the tainter removes it"
    return "FREE", one.verdict


class _Node:
    def __init__(
        self,
        node: Node,
        health: NodeHealth | None,
        memory: NodeRecord,
        report: NodeReport,
        policy: Policy,
        now: float,
        devices: NodeDevices,
    ) -> None:
        self._devices = devices
        self.name = node.metadata.name
        self.memory = memory
        self._node = node
        self._health = health
        self._report = report
        self._policy = policy
        self._now = now
        self.withheld = withheld_reason(node)
        self._there = {(taint.key, taint.effect) for taint in node.spec.taints}

    @property
    def verdict(self) -> str:
        if self._report.known:
            return f"last report: {self._report.verdict}"
        if self._health is None:
            return "no NodeHealth object: no agent has reported"
        return f"invalid NodeHealth: {self._report.error}" if self._report.error else "no agent has reported"

    def notes(self) -> Iterator[str]:
        if self.memory.open and not self._report.known:
            yield self.verdict
        if self._report.known and self._health is not None:
            at = self._health.status.observed_at
            yield f"last report {self.ago(at) if at else ''}: {self._report.verdict}, boot {self._report.boot}"
            if self._report.error:
                yield f"invalid part of the NodeHealth, ignored: {self._report.error}"
        for asks, attempt in sorted(self.memory.attempts.items()):
            progress = "".join(f", {part}" for part in (attempt.stage, attempt.ref) if part)
            yield f"repair (class {asks}): attempt {attempt.n}, {self.ago(attempt.at)}{progress}"

    def ago(self, at: str) -> str:
        """``2h 13m ago (2026-01-01T03:12:05Z)``."""
        then = seconds(at)
        return f"{lasted(self._now - then)} ago ({rfc3339_whole(then)})" if then else "at an unknown time"

    # faults

    def chain(self, fault: Fault) -> FaultChain:
        want = match_policy(fault, self._policy)
        if fault.rest:
            links = (ChainLink("saw", f"{fault.rest} more faults, not stored one by one"), *self._ends(fault, want))
            return FaultChain(f"{fault.check} *", self._state(fault, want), links)
        if fault.check == LOST_CHECK:
            saw = "the reason was lost with the annotation"
            return FaultChain(
                fault.component, self._state(fault, want), (ChainLink("saw", saw), *self._ends(fault, want))
            )
        finding = self._report.finding(fault.key)
        links = (
            *_evidence(fault.message if finding is None else finding.message, fault.origin, finding),
            ChainLink("rule", self._rule(fault, want)),
            *self._budget(fault, want),
            ChainLink("since", self._since(fault, finding)),
            *self._cost(fault, want),
            *self._proof(fault, want),
            *self._held(fault, want),
            *self._ends(fault, want),
        )
        return FaultChain(" ".join(fault.key), self._state(fault, want), links)

    def _state(self, fault: Fault, want: FaultPolicy) -> str:
        if fault.over:
            return "held"
        if want.taint is None:
            return "quarantined" if want.quarantine or want.device is not None else "open"
        if confirmed_at(fault, want, self._now) > self._now:
            return "waiting"
        return "tainted" if (want.taint.key, want.taint.effect) in self._there else "withheld"

    def _rule(self, fault: Fault, want: FaultPolicy) -> str:
        name = want.rule or fault.rule or "none"
        was = f" (opened by {fault.rule})" if fault.rule and fault.rule != name else ""
        asks = f" of class {fault.fault_class}" if fault.fault_class else ""
        does = f"taint {format_taint(want.taint)}" if want.taint is not None else ""
        if want.drain:
            does += ", and drain"
        elif want.quarantine:
            does = "quarantine the component"
        elif want.device is not None:
            does = f"taint {format_taint(want.device)} on the device alone, by DeviceTaintRules"
        elif fault.device == DeviceStage.WANTED:
            does += ", until the device's rules are there"
        elif fault.device == DeviceStage.PREVIEW:
            does += ", and rules without effect for the device (preview)"
        return f"{name}{was}: {fault.verdict}{asks} -> {does or 'nothing'}"

    def _budget(self, fault: Fault, want: FaultPolicy) -> Iterator[ChainLink]:
        state = self._state(fault, want)
        if state == "withheld":
            yield ChainLink("withheld", self.withheld or _NOT_PROCESSED)
        if fault.incident:
            others = f"on {fault.others} other nodes too" if fault.others else ""
            yield ChainLink("incident", " ".join(part for part in (fault.incident, others) if part))
        if state == "waiting":
            until = confirmed_at(fault, want, self._now)
            yield ChainLink("waits", f"{want.wait_s:g} s, as its rule requires, until {rfc3339_whole(until)}")

    def _since(self, fault: Fault, finding: ReportedFinding | None) -> str:
        text = f"{self.ago(fault.since)}, occurrence {fault.occurrence}, boot {fault.boot or 'unknown'}"
        if fault.raised:
            text += f"; occurred again {self.ago(fault.raised)}"
        if finding is None and self._report.known and not fault.over:
            text += "; no longer reported, but that alone does not close the fault"
        return text

    def _cost(self, fault: Fault, want: FaultPolicy) -> Iterator[ChainLink]:
        cost = fault_cost(fault, self._devices, self._now)
        if cost is not None and (cost.alone or self._state(fault, want) == "tainted"):
            yield ChainLink("cost", format_cost(cost))

    def _proof(self, fault: Fault, want: FaultPolicy) -> Iterator[ChainLink]:
        if want.proof is None or fault.over:
            return
        for line in format_proof(fault, want, self._health, self._now, hold_s=self._policy.hold_down.base):
            yield ChainLink("proof", line)
        for request in self._health.spec.requests if self._health is not None else ():
            proof = read_proof_request(request)
            if proof is None or proof.digest != want.proof.digest:
                continue
            answer = (
                next((a for a in self._health.status.answers if a.id == request.id), None) if self._health else None
            )
            if answer is None:
                result = "no result yet"
            elif not answer.finished:
                result = f"{answer.passes} of {answer.runs} passed so far"
            else:
                why = f" ({shorten(f'{answer.reason} {answer.message}'.strip())})" if answer.reason else ""
                result = f"{answer.verdict}, {answer.passes} of {answer.runs} passed{why}"
            age = lasted(self._now - proof.at)
            yield ChainLink("proof", f"{', '.join(request.checks)}, requested {age} ago: {result}")

    def _held(self, fault: Fault, want: FaultPolicy) -> Iterator[ChainLink]:
        if not fault.over:
            return
        until = held_until(fault, want, self.memory, self._policy)
        there = want.taint is not None and (want.taint.key, want.taint.effect) in self._there
        what = (
            "the taint stays"
            if there
            else "the device stays out of use"
            if want.device
            else "the fault stays open, without a taint,"
        )
        times = current_penalty(self.memory, fault, self._now, self._policy)
        yield ChainLink(
            "held",
            f"resolved {self.ago(fault.over)} by {_by(fault.how, fault.by)}; flapping (penalty {times:.1f}), so "
            f"{what} until {rfc3339_whole(until)}, in {lasted(until - self._now)}",
        )

    def _ends(self, fault: Fault, want: FaultPolicy) -> Iterator[ChainLink]:
        if fault.over:
            return
        possible = [way for way in want.close_on if way is not CloseOn.SOURCE or fault.check in SOURCE_CHECKS]
        ways = [_WORDS[way] for way in possible if way in _WORDS]
        if want.proof is not None and CloseOn.PROOF in want.close_on:
            after = ", after a reboot" if want.proof.new_boot else ""
            passes = want.proof.proof.passes
            ways.insert(0, f"{', '.join(want.proof.names)} passing {passes} times when requested{after}")
        check = "" if fault.check == LOST_CHECK or fault.rest else f" {fault.check}"
        yield ChainLink("ends by", "; or ".join([*ways, f"an operator: muster clear {self.name}{check}"]))

    # closed faults, and findings without a fault

    def closed(self, entry: ClosedFault) -> FaultChain:
        duration = ""
        if entry.since and entry.closed_at:
            duration = f", after {lasted(seconds(entry.closed_at) - seconds(entry.since))}"
        links = [ChainLink("saw", shorten(entry.message, 256))] if entry.message else []
        links += [ChainLink("rule", entry.rule)] if entry.rule else []
        links.append(ChainLink("closed", f"{self.ago(entry.closed_at)}{duration}, occurrence {entry.occurrence}"))
        links.append(ChainLink("who", _by(entry.how, entry.by)))
        return FaultChain(" ".join(entry.key), "closed", tuple(links))

    def findings(self, open_keys: set[tuple[str, str, str]]) -> Iterator[FaultChain]:
        closed = {entry.key: entry for entry in self.memory.closed}
        for key, finding in sorted((self._report.findings or {}).items()):
            if key in open_keys:
                continue
            entry = closed.get(key)
            clear = self._report.clear_for(key, finding.occurrence)
            if entry is not None and self.memory.has_closed(key, finding.occurrence):
                why = f"closed {self.ago(entry.closed_at)} by {_by(entry.how, entry.by)}; only a new occurrence counts"
            elif clear is not None:
                why = f"cleared by {clear.by or 'an unnamed user'}; only a new occurrence counts"
            else:
                asks = finding.fault_class
                rule = self._policy.rule_for(*key, finding.verdict, asks)
                why = f"{rule.name}: {rule.action}" if rule is not None else "no rule matches: no action"
            links = (*_evidence(finding.message, finding.origin, finding), ChainLink("rule", why))
            yield FaultChain(" ".join(key), finding.verdict, links)


def _evidence(message: str, origin: str, finding: ReportedFinding | None) -> Iterator[ChainLink]:
    who = {"user": " [written from user space]", "kernel": " [written by the kernel]"}.get(origin, "")
    times = f", {finding.count} times" if finding is not None and finding.count > 1 else ""
    yield ChainLink("saw", f"{message}{who}{times}")
    for measured in finding.measurements if finding is not None else ():
        yield ChainLink("measured", _measured(measured))


def _measured(measured: ReportedMeasurement) -> str:
    unit = f" {measured.unit}" if measured.unit else ""
    limit = f" -> threshold {measured.threshold:g}{unit}" if measured.threshold is not None else ""
    return f"{measured.name} {measured.value:g}{unit}{limit}"


def _by(how: str, by: str) -> str:
    if how == "person":
        return f"{by or 'a person'} (person)"
    return f"{how} ({by})" if by else how or "unknown"


def _do(one: _Node, chains: list[FaultChain]) -> Iterator[str]:
    if chains:
        yield f"muster clear {one.name}    declare its faults resolved"
        yield f"muster release {one.name}  the same, and remove everything that Muster set on the node"
