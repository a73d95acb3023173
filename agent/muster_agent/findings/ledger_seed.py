"""A ledger from the own NodeHealth, for an agent that lost its state file (or whose file is older than what it told).

Numbers go on above the highest ever told; findings told as open stay open under their numbers; what was told to be
over is not opened again by reading the same lines a second time.
"""

import contextlib

from muster_agent.findings.ledger import OCCURRENCE_LIMIT, ClearedFinding, Ledger, StoredLedger
from muster_agent.findings.replayed_signs import KnownSigns
from muster_checks.base.vocabulary import FaultClass, Finding, Measurement, Origin, Verdict, severity
from muster_kube import nodehealth
from muster_kube.api.times import seconds


def reported_check(health: nodehealth.NodeHealth, check: str) -> nodehealth.ReportedCheck | None:
    """What the object says of ``check``, or None."""
    return next((status for status in health.status.checks if status.name == check), None)


def highest_reported(health: nodehealth.NodeHealth, check: str) -> int:
    """The highest number that ``health`` knows of ``check``; 0 for none."""
    told = reported_check(health, check)
    if told is None:
        return 0
    listed = [*(f.occurrence for f in told.findings), *(over.occurrence for over in told.cleared)]
    return _number(max([told.last_occurrence, *listed]))


def reports_more_than(health: nodehealth.NodeHealth, check: str, ledger: Ledger) -> bool:
    """True where ``health`` was told what ``ledger`` does not have: a number above its highest, that a finding it holds
    open is over, or that one is worse. A number names one firing: what was told to be over under it is over."""
    told = reported_check(health, check)
    if told is None:
        return False
    ours = {(finding.key, finding.occurrence): finding for finding in ledger.open_findings()}
    over = any(((each.component, each.reason), each.occurrence) in ours for each in told.cleared)
    worse = any(
        (known := ours.get(((each.component, each.reason), each.occurrence))) is not None
        and each.verdict in list(Verdict)
        and severity(Verdict(each.verdict)) > severity(known.verdict)
        for each in told.findings
    )
    return over or worse or highest_reported(health, check) > ledger.counter


def seed_ledger(check: str, boot_id: str, health: nodehealth.NodeHealth) -> Ledger:
    """A ledger that goes on from what ``health`` tells; findings of another boot are gone, their numbers are not."""
    told = reported_check(health, check) or nodehealth.ReportedCheck(name=check, verdict="")
    same_boot = health.status.boot_id == boot_id
    findings: list[Finding] = []
    if same_boot:
        for entry in told.findings:
            # an entry that people edited into nonsense is left out: its line in the log opens it anew
            with contextlib.suppress(ValueError):
                findings.append(_finding(entry))
    over = tuple(
        ClearedFinding(
            component=entry.component,
            reason=entry.reason,
            occurrence=_number(entry.occurrence),
            how=entry.how,
            at=seconds(entry.at),
            message=entry.message,
        )
        for entry in told.cleared
    )
    replayed = {(entry.component, entry.reason): _closed(entry) for entry in over} if same_boot else {}
    for finding in findings:
        replayed[finding.key] = KnownSigns(
            component=finding.component, reason=finding.reason, until=finding.last_seen, open=True
        )
    full = len(over) >= nodehealth.CLEARED_LIMIT
    ledger = Ledger(
        check,
        boot_id,
        StoredLedger(
            boot_id=boot_id,
            findings=tuple(findings),
            over=over,
            replayed=tuple(replayed.values()),
            replay_floor=min(entry.at for entry in over) if full and same_boot else 0.0,
        ),
    )
    clears = (clear.occurrence for clear in health.spec.clear if clear.check == check)
    ledger.raise_floor(max((highest_reported(health, check), *clears)))
    return ledger


def _number(typed: int) -> int:
    """A number that people may have typed, with room to count on."""
    return min(typed, OCCURRENCE_LIMIT)


def _closed(entry: ClearedFinding) -> KnownSigns:
    return KnownSigns(component=entry.component, reason=entry.reason, until=entry.at)


def _finding(entry: nodehealth.ReportedFinding) -> Finding:
    """Raises ValueError for a verdict, class or origin that does not exist."""
    last_seen = seconds(entry.last_seen)
    return Finding(
        component=entry.component,
        reason=entry.reason,
        verdict=Verdict(entry.verdict),
        message=entry.message,
        fault_class=FaultClass(entry.fault_class),
        measurements=tuple(
            Measurement(name=m.name, value=m.value, unit=m.unit, threshold=m.threshold) for m in entry.measurements
        ),
        first_seen=seconds(entry.first_seen) or last_seen,
        last_seen=last_seen,
        count=_number(entry.count),
        occurrence=_number(entry.occurrence),
        origin=Origin(entry.origin) if entry.origin else None,
    )
