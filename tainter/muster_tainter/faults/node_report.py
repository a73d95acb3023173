"""Validates a NodeHealth. A status with an invalid part opens faults with its valid parts, but closes none.

So no part hides a failure in the rest, and nothing is released on the word of a report that is partly nonsense. The
clear requests in the spec count in any case.
"""

from dataclasses import dataclass, replace

from muster_checks.base.vocabulary import FaultClass, Verdict, worst
from muster_kube.nodehealth import (
    RESERVED_CHECKS,
    ClearedFault,
    ClearEntry,
    NodeHealth,
    ReportedCheck,
    ReportedFinding,
)
from muster_tainter.faults.occurrence import closes
from muster_tainter.faults.record.node_record import OCCURRENCE_LIMIT
from muster_tainter.policy.recovery import ProofRequest, read_proof_request

_VERDICTS = frozenset(Verdict)
_CLASSES = frozenset(FaultClass)
_GRAVITY: dict[str, int] = {fault_class: place for place, fault_class in enumerate(FaultClass)}  # defined in this order
DISOWNED = "disowned"  # the agent never made the finding
_AGENT_HOW = ("driver", "quiet", "request", "run", DISOWNED)  # what an agent may report

# of a node. An agent of 45 checks has 64 findings of a check at most, and hundreds only where it has gone mad. Deciding
# about as many as an object takes, 8,192, took seconds of a core: a tainter with a share of one lost its lease over it
FINDINGS_LIMIT = 1024

FaultKey = tuple[str, str, str]  # check, component, reason


@dataclass(frozen=True)
class UnusableHealth:
    """An object that does not decode as a NodeHealth; the store does not contain it."""

    error: str


@dataclass(frozen=True)
class NodeReport:
    """A NodeHealth as input of rules.

    known:    False: nothing valid is reported (yet); then only ``clears`` counts
    error:    which part is invalid, and why; empty if none is. Then the other parts only open faults
    findings: by fault key, the highest occurrence
    looked:   checks that measured: their verdict is PASS, WARN or FAIL and no finding is left out
    proved:   requests for proof that the agent answered PASS
    asked:    time of the latest request for proof, in seconds since the epoch
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
        """The entry of spec.clear that covers the fault."""
        check, component, _ = key
        for clear in self.clears:
            matches = clear.check == check and clear.component in ("*", component)
            if matches and closes(check, clear.occurrence, occurrence):
                return clear
        return None


_latest: list[tuple[NodeHealth, NodeReport]] = []  # one: a decision asks half a dozen times for the same


def read_report(health: NodeHealth | UnusableHealth | None) -> NodeReport:
    if health is None:
        return NodeReport(known=False)
    if isinstance(health, UnusableHealth):
        return NodeReport(known=False, error=health.error)
    for known, its_report in list(_latest):
        if known is health:
            return its_report
    report = _read(health)
    _latest[:] = [(health, report)]
    return report


def _read(health: NodeHealth) -> NodeReport:
    clears = health.spec.clear
    status = health.status
    if not status.verdict:
        return NodeReport(known=False, clears=clears)
    error = find_invalid_part(health)
    if error:
        return _opening_part(health, error)
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


def _opening_part(health: NodeHealth, error: str) -> NodeReport:
    """The findings in valid parts of an invalid status; of too many, the gravest."""
    status, clears = health.status, health.spec.clear
    reported = [
        (check.name, finding)
        for check in status.checks
        if check.name and check.name not in RESERVED_CHECKS
        for finding in check.findings
    ]
    if len(reported) > FINDINGS_LIMIT:
        reported.sort(key=lambda each: (each[1].verdict == Verdict.FAIL, _GRAVITY.get(each[1].fault_class, 0)))
    findings: dict[FaultKey, ReportedFinding] = {}
    while reported and len(findings) < FINDINGS_LIMIT:
        name, finding = reported.pop()
        key = (name, finding.component, finding.reason)
        known = findings.get(key)
        if not _invalid_finding(finding) and (known is None or known.occurrence < finding.occurrence):
            findings[key] = finding
    if not findings:
        return NodeReport(known=False, error=error, clears=clears)
    verdict = worst([Verdict(finding.verdict) for finding in findings.values()], Verdict.UNKNOWN)
    return NodeReport(
        known=True,
        error=error,
        verdict=verdict.value,
        boot=status.boot_id,
        findings=findings,
        cleared={},
        asked=_latest_request_at(health),
        clears=clears,
    )


def _passed_requests(health: NodeHealth) -> tuple[ProofRequest, ...]:
    passed = {each.id: each.without for each in health.status.answers if each.finished and each.verdict == Verdict.PASS}
    proofs = [
        replace(proof, without=passed[request.id])
        for request in health.spec.requests
        if request.id in passed and (proof := read_proof_request(request)) is not None
    ]
    return tuple(proofs)


def _latest_request_at(health: NodeHealth) -> float:
    return max(
        (proof.at for request in health.spec.requests if (proof := read_proof_request(request)) is not None),
        default=0.0,
    )


def find_invalid_part(health: NodeHealth) -> str:
    """Which part of the status is invalid, and why; empty if it is valid."""
    status = health.status
    if status.verdict not in _VERDICTS:
        return f"status.verdict: {status.verdict!r} is not a verdict"
    count = sum(len(check.findings) for check in status.checks)
    if count > FINDINGS_LIMIT:
        return f"status.checks: {count} findings; expected at most {FINDINGS_LIMIT}"
    names: set[str] = set()
    for i, check in enumerate(status.checks):
        where = f"status.checks[{i}]"
        if not check.name or check.name in names:
            return f"{where}.name: {check.name!r} is empty or a duplicate"
        if check.name in RESERVED_CHECKS:
            return f"{where}.name: {check.name!r} is reserved"
        names.add(check.name)
        problem = _invalid_check(check)
        if problem:
            return f"{where}{problem}"
    return ""


def _invalid_check(check: ReportedCheck) -> str:
    if check.verdict not in _VERDICTS:
        return f".verdict: {check.verdict!r} is not a verdict"
    for i, finding in enumerate(check.findings):
        problem = _invalid_finding(finding)
        if problem:
            return f".findings[{i}].{problem}"
    for i, over in enumerate(check.cleared):
        if not 0 < over.occurrence <= OCCURRENCE_LIMIT or not over.component or not over.reason:
            return f".cleared[{i}]: component, reason or occurrence is missing"
    return ""


def _invalid_finding(finding: ReportedFinding) -> str:
    if not finding.component or not finding.reason:
        return "component: component or reason is missing"
    if finding.component == "*" or finding.reason == "*":
        return "component: * is not allowed"
    if finding.verdict not in _VERDICTS:
        return f"verdict: {finding.verdict!r} is not a verdict"
    if finding.fault_class not in _CLASSES:
        return f"class: {finding.fault_class!r} is not a class"
    if not 0 < finding.occurrence <= OCCURRENCE_LIMIT:
        return f"occurrence: {finding.occurrence} is out of range"
    return ""
