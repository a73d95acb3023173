"""What can be believed of a NodeHealth: all of it, or nothing but a person's word.

An agent's status with one part that makes no sense is not trusted in its other parts either: it opens and closes
nothing until it makes sense again.
"""

from dataclasses import dataclass

from muster_checks.base.vocabulary import FaultClass, Verdict
from muster_kube.nodehealth import ClearedFault, ClearEntry, NodeHealth, ReportedCheck, ReportedFinding
from muster_tainter.faults.node_record import LOST_CHECK, OCCURRENCE_LIMIT, REST
from muster_tainter.policy.recovery import ProofRequest, read_proof_request

_VERDICTS = frozenset(Verdict)
_CLASSES = frozenset(FaultClass)
_AGENT_HOW = ("driver", "quiet", "request", "run")  # an agent's word; no other is its to give
_RESERVED = (LOST_CHECK, REST)  # what the tainter's own faults are called

FaultKey = tuple[str, str, str]  # check, component, reason


@dataclass(frozen=True)
class UnusableHealth:
    """An object whose fields are not what NodeHealth's types say (the store holds no such object)."""

    error: str


@dataclass(frozen=True)
class NodeReport:
    """A NodeHealth as rules see it.

    known:    False: nothing is reported (yet), or it cannot be believed; then only ``clears`` counts
    error:    why it cannot be believed; empty while nothing is reported
    findings: by fault key, the highest occurrence
    looked:   checks that measured: their verdict is PASS, WARN or FAIL and none of their findings is left out
    proved:   requests for proof that the agent answered PASS
    asked:    what the latest request for proof that stands there says of its time, in seconds since the epoch
    """

    known: bool
    error: str = ""
    verdict: str = ""
    boot: str = ""
    findings: dict[FaultKey, ReportedFinding] | None = None
    cleared: dict[FaultKey, tuple[ClearedFault, ...]] | None = None
    looked: frozenset[str] = frozenset()
    proved: tuple[ProofRequest, ...] = ()
    asked: float = 0.0
    clears: tuple[ClearEntry, ...] = ()

    def finding(self, key: FaultKey) -> ReportedFinding | None:
        return None if self.findings is None else self.findings.get(key)

    def clear_for(self, key: FaultKey, occurrence: int) -> ClearEntry | None:
        """The entry of spec.clear that covers that fault."""
        check, component, _ = key
        for clear in self.clears:
            if clear.check == check and clear.component in ("*", component) and clear.occurrence >= occurrence:
                return clear
        return None


def read_report(health: NodeHealth | UnusableHealth | None) -> NodeReport:
    if health is None:
        return NodeReport(known=False)
    if isinstance(health, UnusableHealth):
        return NodeReport(known=False, error=health.error)
    clears = health.spec.clear
    status = health.status
    if not status.verdict:
        return NodeReport(known=False, clears=clears)
    error = find_nonsense(health)
    if error:
        return NodeReport(known=False, error=error, clears=clears)
    findings: dict[FaultKey, ReportedFinding] = {}
    cleared: dict[FaultKey, tuple[ClearedFault, ...]] = {}
    looked = set()
    for check in status.checks:
        if check.verdict in (Verdict.PASS, Verdict.WARN, Verdict.FAIL) and not check.more_findings:
            looked.add(check.name)
        for finding in check.findings:
            key = (check.name, finding.component, finding.reason)
            known = findings.get(key)
            if known is None or known.occurrence < finding.occurrence:
                findings[key] = finding
        for over in check.cleared:
            if over.how not in _AGENT_HOW:
                continue
            key = (check.name, over.component, over.reason)
            cleared[key] = (*cleared.get(key, ()), over)
    return NodeReport(
        known=True,
        verdict=status.verdict,
        boot=status.boot_id,
        findings=findings,
        cleared=cleared,
        looked=frozenset(looked),
        proved=_passed_requests(health) if health.spec.requests else (),
        asked=_latest_request_at(health) if health.spec.requests else 0.0,
        clears=clears,
    )


def _passed_requests(health: NodeHealth) -> tuple[ProofRequest, ...]:
    passed = {answer.id for answer in health.status.answers if answer.finished and answer.verdict == Verdict.PASS}
    asked = [read_proof_request(request) for request in health.spec.requests if request.id in passed]
    return tuple(each for each in asked if each is not None)


def _latest_request_at(health: NodeHealth) -> float:
    return max(
        (asked.at for request in health.spec.requests if (asked := read_proof_request(request)) is not None),
        default=0.0,
    )


def find_nonsense(health: NodeHealth) -> str:
    """Why the status makes no sense; empty if it does."""
    status = health.status
    if status.verdict not in _VERDICTS:
        return f"status.verdict: {status.verdict!r} is none"
    names: set[str] = set()
    for i, check in enumerate(status.checks):
        where = f"status.checks[{i}]"
        if not check.name or check.name in names:
            return f"{where}.name: {check.name!r} is empty or stands twice"
        if check.name in _RESERVED:
            return f"{where}.name: {check.name!r} is none"
        names.add(check.name)
        problem = _check_nonsense(check)
        if problem:
            return f"{where}{problem}"
    return ""


def _check_nonsense(check: ReportedCheck) -> str:
    if check.verdict not in _VERDICTS:
        return f".verdict: {check.verdict!r} is none"
    for i, finding in enumerate(check.findings):
        problem = _finding_nonsense(finding)
        if problem:
            return f".findings[{i}].{problem}"
    for i, over in enumerate(check.cleared):
        if not 0 < over.occurrence <= OCCURRENCE_LIMIT or not over.component or not over.reason:
            return f".cleared[{i}]: no component, no reason or no occurrence"
    return ""


def _finding_nonsense(finding: ReportedFinding) -> str:
    if not finding.component or not finding.reason:
        return "component: it has no name or no reason"
    if finding.component == "*" or finding.reason == "*":
        return "component: * is none"
    if finding.verdict not in _VERDICTS:
        return f"verdict: {finding.verdict!r} is none"
    if finding.fault_class not in _CLASSES:
        return f"class: {finding.fault_class!r} is none"
    if not 0 < finding.occurrence <= OCCURRENCE_LIMIT:
        return f"occurrence: {finding.occurrence} is none"
    return ""
