"""Creates a ledger from the NodeHealth, for an agent whose state file is lost or older than what it published.

Numbers continue above the highest published one. Published open findings stay open under their numbers. Reading the
same lines again does not reopen findings that were published as cleared.
"""

import contextlib

from muster_agent.findings.ledger import OCCURRENCE_LIMIT, ClearedFinding, Ledger, StoredLedger
from muster_agent.findings.replayed_signs import KnownSigns
from muster_checks.base.vocabulary import FaultClass, Finding, Measurement, Origin, Verdict, severity
from muster_kube import nodehealth
from muster_kube.api.times import seconds


def reported_check(health: nodehealth.NodeHealth, check: str) -> nodehealth.ReportedCheck | None:
    """The status of ``check`` in the object, or None."""
    return next((status for status in health.status.checks if status.name == check), None)


def highest_reported(health: nodehealth.NodeHealth, check: str) -> int:
    """The highest occurrence number of ``check`` in ``health``; 0 if there is none."""
    reported = reported_check(health, check)
    if reported is None:
        return 0
    listed = [*(f.occurrence for f in reported.findings), *(over.occurrence for over in reported.cleared)]
    return _number(max([reported.last_occurrence, *listed]))


def reports_more_than(health: nodehealth.NodeHealth, check: str, ledger: Ledger) -> bool:
    """True if ``health`` is newer than ``ledger``: it has a higher number, or a finding that is open in the ledger is
    cleared or worse in it. Numbers are never reused, so a number that was published as cleared stays cleared."""
    reported = reported_check(health, check)
    if reported is None:
        return False
    ours = {(finding.key, finding.occurrence): finding for finding in ledger.open_findings()}
    over = any(((each.component, each.reason), each.occurrence) in ours for each in reported.cleared)
    worse = any(
        (known := ours.get(((each.component, each.reason), each.occurrence))) is not None
        and each.verdict in list(Verdict)
        and severity(Verdict(each.verdict)) > severity(known.verdict)
        for each in reported.findings
    )
    return over or worse or highest_reported(health, check) > ledger.counter


def seed_ledger(check: str, boot_id: str, health: nodehealth.NodeHealth) -> Ledger:
    """A ledger that continues from ``health``. It drops findings of another boot, but continues their numbers."""
    reported = reported_check(health, check) or nodehealth.ReportedCheck(name=check, verdict="")
    same_boot = health.status.boot_id == boot_id
    findings: list[Finding] = []
    if same_boot:
        for entry in reported.findings:
            # an entry made invalid by an edit is dropped; its line in the log opens the finding again
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
        for entry in reported.cleared
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
    """A number that may come from an edit, limited so that counting can go on."""
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
