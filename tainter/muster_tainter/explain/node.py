"""Why a node is tainted, or is not: for each fault the chain from what was seen to what was done. Pure.

The first line says the state and its reason; whoever was woken up reads on only where that is not enough.
"""

from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from muster_checks.base.vocabulary import shorten
from muster_kube.api.objects import Node
from muster_kube.api.times import rfc3339_whole, seconds
from muster_kube.nodehealth import NodeHealth, ReportedFinding, ReportedMeasurement
from muster_tainter.faults.desired_state import FAULTY_LABEL, MANAGED_LABEL, is_managed
from muster_tainter.faults.messages import format_taint, withheld_reason
from muster_tainter.faults.node_record import (
    ANNOTATION,
    LOST_CHECK,
    ClosedFault,
    Fault,
    NodeRecord,
    UnreadableRecord,
    as_our_taint,
    decode_record,
)
from muster_tainter.faults.node_report import NodeReport, read_report
from muster_tainter.faults.policy_match import FaultPolicy, confirmed_at, current_penalty, held_until, match_policy
from muster_tainter.policy.recovery import read_proof_request
from muster_tainter.policy.rules import STARTUP_KEY, CloseOn, Policy
from muster_tainter.verification.messages import format_proof

_LABEL_WIDTH = 8

_NEEDS = {
    "reset": "needs a reset",
    "reboot": "needs a reboot",
    "replace": "needs a new part",
    "contact": "needs a person to look",
}
_OTHERS = ("agent", "condition", "loki", "podlog")  # checks of sources that say themselves when it is over
_WORDS = {
    CloseOn.BOOT: "a reboot after which it is not found",
    CloseOn.DRIVER: "the driver's own word that it is over",
    CloseOn.QUIET: "no further sign for the check's quiet time",
    CloseOn.SOURCE: "whoever reported it saying that it is over",
}


class ChainLink(NamedTuple):
    """One link of a chain: ``saw``, ``limit``, ``rule``, ``budget``, ``since``, ``proof``, ``held``, ``ends`` …"""

    label: str
    text: str


class FaultChain(msgspec.Struct, frozen=True):
    """One fault. state: tainted, withheld, waiting, held, quarantined, open, or closed and by what."""

    fault: str
    state: str
    links: tuple[ChainLink, ...] = ()


class NodeExplanation(msgspec.Struct, frozen=True, rename="camel"):
    """state: TAINTED, WITHHELD, FAULTY (nothing is done about it), HELD, FREE, UNMANAGED.

    why: in one line; paused: who paused, why; chains: of open faults, the worst state first; closed: the newest first;
    findings: what is reported and no fault; do: what a person may do
    """

    node: str
    state: str
    why: str
    paused: str = ""
    taints: tuple[str, ...] = ()
    others: tuple[str, ...] = ()
    chains: tuple[FaultChain, ...] = ()
    closed: tuple[FaultChain, ...] = ()
    findings: tuple[FaultChain, ...] = ()
    notes: tuple[str, ...] = ()
    do: tuple[str, ...] = ()


def explain_node(
    node: Node, health: NodeHealth | None, policy: Policy, now: float, *, paused: str = ""
) -> NodeExplanation:
    """now: seconds since the epoch; paused: why nothing new is tainted, as `muster pause` left it."""
    name = node.metadata.name
    if not is_managed(node):
        return NodeExplanation(name, "UNMANAGED", f"label {MANAGED_LABEL}=false: muster leaves it alone", paused=paused)
    notes = []
    try:
        memory = decode_record(node.metadata.annotations.get(ANNOTATION))
    except UnreadableRecord as error:
        memory = NodeRecord()
        notes.append(f"annotation {ANNOTATION} cannot be read ({error}): the tainter rebuilds it")
    report = read_report(health)
    one = _Node(node, health, memory, report, policy, now)
    chains = sorted((one.chain(fault) for fault in memory.open), key=lambda chain: _STATES.index(chain.state))
    taints = [taint for taint in node.spec.taints if as_our_taint(taint) in memory.ours or taint.key == STARTUP_KEY]
    open_keys = {fault.key for fault in memory.open}
    closed = [one.closed(entry) for entry in memory.closed if entry.key not in open_keys]
    if not memory.open and node.metadata.labels.get(FAULTY_LABEL):
        notes.append(f"label {FAULTY_LABEL} without an open fault: the tainter takes it off")
    state, why = _headline(chains, [format_taint(taint) for taint in taints], one)
    return NodeExplanation(
        node=name,
        state=state,
        why=why,
        paused=paused,
        taints=tuple(map(format_taint, taints)),
        others=tuple(format_taint(taint) for taint in node.spec.taints if taint not in taints),
        chains=tuple(chains),
        closed=tuple(closed),
        findings=tuple(one.findings(open_keys)),
        notes=(*notes, *one.notes()),
        do=tuple(_do(one, chains)),
    )


_STATES = ("tainted", "withheld", "quarantined", "waiting", "open", "held")
_HEADS = {"withheld": "WITHHELD", "held": "HELD"}


def _headline(chains: list[FaultChain], taints: list[str], one: "_Node") -> tuple[str, str]:
    if chains:
        worst = chains[0]
        more = f" (and {len(chains) - 1} more)" if len(chains) > 1 else ""
        saw = next((link.text for link in worst.links if link.label == "saw"), "")
        said = f"{worst.fault}{f': {saw}' if saw else ''}{more}"
        since = next((link.text.partition(" ago")[0] for link in worst.links if link.label == "since"), "")
        open_ones = (fault.fault_class for fault in one.memory.open if not fault.over)
        needs = (_NEEDS[fault_class] for fault_class in open_ones if fault_class in _NEEDS)
        asks = "over, held as it comes and goes" if worst.state == "held" else next(needs, "")
        lead = ", ".join(part for part in (f"for {since}" if since else "", asks) if part)
        said = f"{lead}: {said}" if lead else said
        if worst.state == "withheld":
            said = f"{said}; not tainted: {one.withheld or 'the tainter has not come to it yet'}"
        return "TAINTED" if worst.state in ("tainted", "held") and taints else _HEADS.get(worst.state, "FAULTY"), said
    if any(taint.startswith(STARTUP_KEY) for taint in taints):
        return "TAINTED", "new: its first full pass is not done"
    if taints:
        return "TAINTED", "no open fault asks for it: the tainter takes it off"
    return "FREE", one.verdict


class _Node:
    def __init__(
        self, node: Node, health: NodeHealth | None, memory: NodeRecord, report: NodeReport, policy: Policy, now: float
    ) -> None:
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
            return f"its last report was {self._report.verdict}"
        if self._health is None:
            return "there is no NodeHealth: no agent can have reported"
        return f"its NodeHealth makes no sense: {self._report.error}" if self._report.error else "no agent has reported"

    def notes(self) -> Iterator[str]:
        if self.memory.open and not self._report.known:
            yield self.verdict
        if self._report.known and self._health is not None:
            at = self._health.status.observed_at
            yield f"last report {self.ago(at) if at else ''}: {self._report.verdict}, boot {self._report.boot}"
        for asks, attempt in sorted(self.memory.attempts.items()):
            told = " ".join(part for part in (attempt.stage, attempt.ref) if part)
            yield f"repair of class {asks}: attempt {attempt.n}, {self.ago(attempt.at)}{f', {told}' if told else ''}"

    def ago(self, at: str) -> str:
        """``2h 13m ago (2026-01-01T03:12:05Z)``."""
        then = seconds(at)
        return f"{_lasted(self._now - then)} ago ({rfc3339_whole(then)})" if then else "at an unknown time"

    # faults

    def chain(self, fault: Fault) -> FaultChain:
        want = match_policy(fault, self._policy)
        if fault.rest:
            links = (ChainLink("saw", f"{fault.rest} faults more than there is room for"), *self._ends(fault, want))
            return FaultChain(f"{fault.check} *", self._state(fault, want), links)
        if fault.check == LOST_CHECK:
            saw = "its reason is lost with the annotation"
            return FaultChain(
                fault.component, self._state(fault, want), (ChainLink("saw", saw), *self._ends(fault, want))
            )
        finding = self._report.finding(fault.key)
        links = (
            *_evidence(fault.message if finding is None else finding.message, fault.origin, finding),
            ChainLink("rule", self._rule(fault, want)),
            *self._budget(fault, want),
            ChainLink("since", self._since(fault, finding)),
            *self._proof(fault, want),
            *self._held(fault, want),
            *self._ends(fault, want),
        )
        return FaultChain(" ".join(fault.key), self._state(fault, want), links)

    def _state(self, fault: Fault, want: FaultPolicy) -> str:
        if fault.over:
            return "held"
        if want.taint is None:
            return "quarantined" if want.quarantine else "open"
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
            does = "keep the component out of use"
        return f"{name}{was}: {fault.verdict}{asks} -> {does or 'nothing'}"

    def _budget(self, fault: Fault, want: FaultPolicy) -> Iterator[ChainLink]:
        state = self._state(fault, want)
        if state == "withheld":
            yield ChainLink("withheld", self.withheld or "the tainter has not come to it yet")
        if fault.incident:
            others = f"on {fault.others} other nodes too" if fault.others else ""
            yield ChainLink("incident", " ".join(part for part in (fault.incident, others) if part))
        if state == "waiting":
            until = confirmed_at(fault, want, self._now)
            yield ChainLink("waits", f"for {want.wait_s:g} s, as its rule says, until {rfc3339_whole(until)}")

    def _since(self, fault: Fault, finding: ReportedFinding | None) -> str:
        text = f"{self.ago(fault.since)}, occurrence {fault.occurrence}, boot {fault.boot or 'unknown'}"
        if fault.raised:
            text += f"; fired anew {self.ago(fault.raised)}"
        if finding is None and self._report.known and not fault.over:
            text += "; no longer reported, which alone closes nothing"
        return text

    def _proof(self, fault: Fault, want: FaultPolicy) -> Iterator[ChainLink]:
        if want.proof is None or fault.over:
            return
        for line in format_proof(fault, want, self._health, self._now, hold_s=self._policy.hold_down.base):
            yield ChainLink("proof", line)
        for request in self._health.spec.requests if self._health is not None else ():
            asked = read_proof_request(request)
            if asked is None or asked.digest != want.proof.digest:
                continue
            answer = (
                next((a for a in self._health.status.answers if a.id == request.id), None) if self._health else None
            )
            if answer is None:
                said = "not answered yet"
            elif not answer.finished:
                said = f"{answer.passes} of {answer.runs} passed so far"
            else:
                why = f" ({shorten(f'{answer.reason} {answer.message}'.strip())})" if answer.reason else ""
                said = f"{answer.verdict}, {answer.passes} of {answer.runs} passed{why}"
            yield ChainLink("proof", f"{', '.join(request.checks)}, asked {_lasted(self._now - asked.at)} ago: {said}")

    def _held(self, fault: Fault, want: FaultPolicy) -> Iterator[ChainLink]:
        if not fault.over:
            return
        until = held_until(fault, want, self.memory, self._policy)
        there = want.taint is not None and (want.taint.key, want.taint.effect) in self._there
        what = "the taint stays" if there else "it stays a fault, without a taint,"
        times = current_penalty(self.memory, fault.check, self._now, self._policy)
        yield ChainLink(
            "held",
            f"over {self.ago(fault.over)} by {_by(fault.how, fault.by)}; comes and goes (penalty {times:.1f}), so "
            f"{what} until {rfc3339_whole(until)}, in {_lasted(until - self._now)}",
        )

    def _ends(self, fault: Fault, want: FaultPolicy) -> Iterator[ChainLink]:
        if fault.over:
            return
        possible = [way for way in want.close_on if way is not CloseOn.SOURCE or fault.check in _OTHERS]
        ways = [_WORDS[way] for way in possible if way in _WORDS]
        if want.proof is not None and CloseOn.PROOF in want.close_on:
            after = ", after a reboot" if want.proof.new_boot else ""
            passes = want.proof.proof.passes
            ways.insert(0, f"{', '.join(want.proof.checks)} passing {passes} times on request{after}")
        check = "" if fault.check == LOST_CHECK or fault.rest else f" {fault.check}"
        yield ChainLink("ends by", "; or ".join([*ways, f"a person: muster clear {self.name}{check}"]))

    # what is over, and what is no fault

    def closed(self, entry: ClosedFault) -> FaultChain:
        lasted = ""
        if entry.since and entry.closed_at:
            lasted = f", after {_lasted(seconds(entry.closed_at) - seconds(entry.since))}"
        links = [ChainLink("saw", shorten(entry.message, 256))] if entry.message else []
        links += [ChainLink("rule", entry.rule)] if entry.rule else []
        links.append(ChainLink("closed", f"{self.ago(entry.closed_at)}{lasted}, occurrence {entry.occurrence}"))
        links.append(ChainLink("who", _by(entry.how, entry.by)))
        return FaultChain(" ".join(entry.key), "closed", tuple(links))

    def findings(self, open_keys: set[tuple[str, str, str]]) -> Iterator[FaultChain]:
        closed = {entry.key: entry for entry in self.memory.closed}
        for key, finding in sorted((self._report.findings or {}).items()):
            if key in open_keys:
                continue
            entry = closed.get(key)
            clear = self._report.clear_for(key, finding.occurrence)
            if entry is not None and entry.occurrence >= finding.occurrence:
                why = f"closed {self.ago(entry.closed_at)} by {_by(entry.how, entry.by)}; only a new firing counts"
            elif clear is not None:
                why = f"cleared by {clear.by or 'somebody'}; only a new firing counts"
            else:
                asks = finding.fault_class
                rule = self._policy.rule_for(*key, finding.verdict, asks)
                why = f"{rule.name}: {rule.action}" if rule is not None else "none is for it: nothing"
            links = (*_evidence(finding.message, finding.origin, finding), ChainLink("rule", why))
            yield FaultChain(" ".join(key), finding.verdict, links)


def _evidence(message: str, origin: str, finding: ReportedFinding | None) -> Iterator[ChainLink]:
    who = {"user": " [written from user space]", "kernel": " [the kernel's own]"}.get(origin, "")
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
    return f"{how} ({by})" if by else how or "nobody knows whom"


def _do(one: _Node, chains: list[FaultChain]) -> Iterator[str]:
    if chains:
        yield f"muster clear {one.name}    its faults are over, by your word"
        yield f"muster release {one.name}  the same, and everything of muster's comes off"


def _lasted(passed_s: float) -> str:
    """``45s``, ``12m``, ``5h 3m``, ``3d 4h``; a clock that was set back makes it 0s."""
    whole = max(0, int(passed_s))
    if whole < 120:
        return f"{whole}s"
    if whole < 7200:
        return f"{whole // 60}m"
    hours, minutes = divmod(whole // 60, 60)
    return f"{hours}h {minutes}m" if hours < 48 else f"{hours // 24}d {hours % 24}h"


def format_explanation(told: NodeExplanation) -> Iterator[str]:
    """For people. What is open first, then what is only said, then what is over."""
    if told.paused:
        yield f"PAUSED{told.paused.removeprefix('paused')}; nothing new is tainted, recovery goes on"
    yield f"{told.node} {told.state}  {told.why}"
    if told.taints:
        yield f"  taints: {', '.join(told.taints)}"
    if told.others:
        yield f"  set by others, and left alone: {', '.join(told.others)}"
    for chain in told.chains:
        yield ""
        yield f"{chain.state.upper()}  {chain.fault}"
        yield from _links(chain)
    for title, chains in (("reported, and no fault:", told.findings), ("closed lately:", told.closed)):
        if chains:
            yield ""
            yield title
        for chain in chains:
            yield f"  {chain.fault}{'' if chain.state == 'closed' else f'  {chain.state}'}"
            yield from (f"  {line}" for line in _links(chain))
    if told.notes or told.do:
        yield ""
    yield from told.notes
    yield from (f"  {line}" for line in told.do)


def _links(chain: FaultChain) -> Iterator[str]:
    return (f"  {link.label:<{_LABEL_WIDTH}} {link.text}" for link in chain.links)
