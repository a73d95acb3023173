"""Creates a ledger from the NodeHealth, for an agent whose state file is lost or older than what it published.

Numbers continue above the highest published one. Published open findings stay open under their numbers. Reading the
same lines again does not reopen findings that were published as cleared.
"""

from muster_agent.findings.ledger import Ledger
from muster_agent.findings.replayed_signs import KnownSigns
from muster_agent.findings.stored_ledger import ClearedBy, ClearedFinding, StoredLedger
from muster_checks.base.vocabulary import FaultClass, Finding, Measurement, Origin, Verdict, severity
from muster_kube import nodehealth
from muster_kube.api.times import seconds

COUNT_LIMIT = 2**53  # what JSON carries exactly


def reported_check(health: nodehealth.NodeHealth, check: str) -> nodehealth.ReportedCheck | None:
    """The status of ``check`` in the object, or None."""
    return next((status for status in health.status.checks if status.name == check), None)


def reported_numbers(reported: nodehealth.ReportedCheck) -> list[int]:
    """All occurrence numbers in the status of a check."""
    listed = [*(f.occurrence for f in reported.findings), *(over.occurrence for over in reported.cleared)]
    return [reported.last_occurrence, *listed]


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
    return over or worse or nodehealth.highest_counted(reported_numbers(reported), ledger.counter) > ledger.counter


def seed_ledger(check: str, boot_id: str, health: nodehealth.NodeHealth) -> Ledger:
    """A ledger that continues from ``health``. It drops findings of another boot, but continues their numbers.

    Numbers far above the others are refused. An open finding with such a number gets a new one; a cleared one is
    dropped, because publishing it again would keep it alive.
    """
    reported = reported_check(health, check) or nodehealth.ReportedCheck(name=check, verdict="")
    same_boot = health.status.boot_id == boot_id
    clears = (clear.occurrence for clear in health.spec.clear if clear.check == check)
    floor = nodehealth.highest_counted([*reported_numbers(reported), *clears])
    findings: list[Finding] = []
    if same_boot:
        for entry in reported.findings:
            counted = 0 < entry.occurrence <= floor
            try:
                findings.append(_finding(entry, entry.occurrence if counted else floor + 1))
            except ValueError:
                continue  # made invalid by an edit; its line in the log opens the finding again
            floor += not counted
    over = tuple(
        ClearedFinding(
            component=entry.component,
            reason=entry.reason,
            occurrence=entry.occurrence,
            how=entry.how,
            at=seconds(entry.at),
            message=entry.message,
        )
        for entry in reported.cleared
        if 0 < entry.occurrence <= floor
    )
    # a disowned finding says nothing about the log: its agent has read no sign of it
    closed = [entry for entry in over if entry.how != ClearedBy.DISOWNED]
    replayed = {(entry.component, entry.reason): _closed(entry) for entry in closed} if same_boot else {}
    for finding in findings:
        replayed[finding.key] = KnownSigns(
            component=finding.component, reason=finding.reason, until=finding.last_seen, open=True
        )
    full = len(closed) >= nodehealth.CLEARED_LIMIT
    return Ledger(
        check,
        boot_id,
        StoredLedger(
            boot_id=boot_id,
            counter=floor,
            findings=tuple(findings),
            over=over,
            replayed=tuple(replayed.values()),
            replay_floor=min(entry.at for entry in closed) if full and same_boot else 0.0,
        ),
    )


def _closed(entry: ClearedFinding) -> KnownSigns:
    return KnownSigns(component=entry.component, reason=entry.reason, until=entry.at)


def _finding(entry: nodehealth.ReportedFinding, occurrence: int) -> Finding:
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
        count=min(entry.count, COUNT_LIMIT),
        occurrence=occurrence,
        origin=Origin(entry.origin) if entry.origin else None,
    )
