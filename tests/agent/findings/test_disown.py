"""Findings in the NodeHealth that the agent never made are closed; what it may have made is left alone."""

import msgspec
import pytest

from muster_agent.findings.ledger import Ledger
from muster_agent.findings.ledger_seed import seed_ledger
from muster_agent.findings.made_findings import LIMIT
from muster_agent.findings.stored_ledger import StoredLedger
from muster_checks.base.declaration import AllClear, Sign
from muster_checks.base.vocabulary import FaultClass, Verdict
from muster_kube.api.times import rfc3339
from muster_kube.nodehealth import (
    DISOWNED_LIMIT,
    OCCURRENCE_GAP,
    ClearedFault,
    ClearEntry,
    Metadata,
    NodeHealth,
    NodeHealthStatus,
    ReportedCheck,
    ReportedFinding,
    is_later,
)

BOOT = "11111111-2222-3333-4444-555555555555"
START = 1_700_000_000.0


def sign(component: str = "gpu/0", verdict: Verdict = Verdict.FAIL, at: float = START) -> Sign:
    return Sign(component=component, reason="Xid79", verdict=verdict, message="x", at=at, fault_class=FaultClass.REBOOT)


def forged(component: str, occurrence: int, verdict: str = "FAIL", fault_class: str = "reboot") -> ReportedFinding:
    return ReportedFinding(
        component=component, reason="Xid79", verdict=verdict, fault_class=fault_class, occurrence=occurrence
    )


def disowned(ledger: Ledger) -> list[tuple[str, int]]:
    return [(entry.component, entry.occurrence) for entry in ledger.over() if entry.how == "disowned"]


def numbers(ledger: Ledger) -> dict[str, int]:
    return {finding.component: finding.occurrence for finding in ledger.open_findings()}


def restarted(ledger: Ledger) -> Ledger:
    """With its state file."""
    stored = msgspec.json.decode(msgspec.json.encode(ledger.memory()), type=StoredLedger)
    return Ledger(ledger.check, ledger.boot_id, stored)


@pytest.mark.parametrize("occurrence", [1, 7, OCCURRENCE_GAP + 2, 2**53])
@pytest.mark.parametrize("restart", [False, True])
def test_a_finding_that_was_never_made_is_closed_and_hides_no_later_one(occurrence: int, restart: bool) -> None:
    ledger = Ledger("dmesg", BOOT)
    ledger.take([sign("gpu/1"), AllClear(component="gpu/1", at=START, how="driver")])
    ledger = restarted(ledger) if restart else ledger
    lines = ledger.disown([forged("gpu/0", occurrence + 1)], START, published=not restart)
    assert len(lines) == 1
    assert disowned(ledger) == [("gpu/0", occurrence + 1)]
    ledger.take([sign("gpu/0")])
    assert is_later(numbers(ledger)["gpu/0"], occurrence + 1)


def test_the_same_is_disowned_once_and_stays_in_the_report() -> None:
    ledger = Ledger("dmesg", BOOT)
    ledger.disown([forged("gpu/0", 3)], START, published=True)
    revision = ledger.revision
    assert ledger.disown([forged("gpu/0", 3)], START + 1, published=True) == ()
    assert ledger.revision == revision
    assert disowned(restarted(ledger)) == [("gpu/0", 3)]


def test_as_many_are_disowned_as_a_report_can_hold_and_no_true_closing_is_displaced() -> None:
    ledger = Ledger("dmesg", BOOT)
    ledger.take([sign("gpu/1"), AllClear(component="gpu/1", at=START, how="driver")])
    ledger.disown([forged(f"nic/{n}", n + 5) for n in range(DISOWNED_LIMIT)], START, published=True)
    assert len(disowned(ledger)) == DISOWNED_LIMIT
    assert ledger.over()[0].how == "driver"


@pytest.mark.parametrize("above", [1, 1000, OCCURRENCE_GAP])
def test_a_true_open_finding_outlives_a_forged_firing_of_it(above: int) -> None:
    ledger = Ledger("dmesg", BOOT)
    ledger.take([sign()])
    ledger.disown([forged("gpu/0", 1 + above)], START, published=True)
    assert numbers(ledger) == {"gpu/0": 2 + above}
    assert disowned(ledger) == []


def test_a_true_open_finding_that_was_made_worse_is_published_as_it_is() -> None:
    ledger = Ledger("dmesg", BOOT)
    ledger.take([sign(verdict=Verdict.WARN)])
    worse = forged("gpu/0", 1, "FAIL")
    assert not ledger.disown([worse], START, published=False), "an earlier agent may have published it"
    ledger.disown([worse], START, published=True)
    assert numbers(ledger) == {"gpu/0": 2}
    assert disowned(ledger) == [("gpu/0", 1)]


@pytest.mark.parametrize("entry", [forged("gpu/0", 1), forged("gpu/0", 1, "WARN")])
def test_what_is_as_it_was_published_or_milder_is_left(entry: ReportedFinding) -> None:
    ledger = Ledger("dmesg", BOOT)
    ledger.take([sign()])
    assert ledger.disown([entry], START, published=True) == ()
    assert numbers(ledger) == {"gpu/0": 1}


@pytest.mark.parametrize(("how", "expected"), [("driver", []), ("request", [("gpu/0", 9)])])
def test_a_fault_that_may_still_be_open_is_not_closed_by_a_forged_firing_of_it(
    how: str, expected: list[tuple[str, int]]
) -> None:
    ledger = Ledger("dmesg", BOOT)
    ledger.take([sign()])
    if how == "request":
        clear = ClearEntry(check="dmesg", component="*", occurrence=1, at=rfc3339(START + 1))
        ledger.apply_clears([clear], START + 1)
    else:
        ledger.take([AllClear(component="gpu/0", at=START + 1, how=how)])
    ledger = restarted(ledger)
    ledger.disown([forged("gpu/0", 1), forged("gpu/0", 9)], START + 2, published=True)
    assert disowned(ledger) == expected


def test_an_agent_without_its_state_disowns_only_what_no_earlier_one_can_have_made() -> None:
    over = ClearedFault(component="gpu/1", reason="Xid79", occurrence=5, how="driver", at="2026-01-01T00:00:00.000Z")
    check = ReportedCheck(
        name="dmesg", verdict="FAIL", findings=(forged("gpu/0", 4),), cleared=(over,), last_occurrence=5
    )
    health = NodeHealth(metadata=Metadata(name="n"), status=NodeHealthStatus(boot_id=BOOT, checks=(check,)))
    ledger = seed_ledger("dmesg", BOOT, health)
    earlier = [forged("gpu/0", 4), forged("gpu/2", 3), forged("gpu/1", 9)]
    assert ledger.disown(earlier, START, published=True) == ()
    ledger.disown([forged("gpu/2", 6)], START, published=True)
    assert disowned(ledger) == [("gpu/2", 6)]
    assert numbers(ledger) == {"gpu/0": 4}


@pytest.mark.parametrize("accounted", [False, True])
def test_a_state_file_of_an_earlier_version_counts_as_complete_if_it_accounts_for_all_numbers(accounted: bool) -> None:
    first = Ledger("dmesg", BOOT)
    first.take([sign("gpu/0"), sign("gpu/1"), AllClear(component="gpu/1", at=START, how="driver")])
    memory = msgspec.structs.replace(first.memory(), made=None)
    ledger = Ledger("dmesg", BOOT, memory if accounted else msgspec.structs.replace(memory, over=()))
    ledger.disown([forged("gpu/2", 2)], START, published=True)
    assert disowned(ledger) == ([("gpu/2", 2)] if accounted else [])


def test_what_was_found_too_long_ago_to_remember_is_not_disowned() -> None:
    ledger = Ledger("dmesg", BOOT)
    for n in range(LIMIT + 1):
        ledger.take([sign(f"nic/{n}"), AllClear(component=f"nic/{n}", at=START, how="driver")])
    assert ledger.disown([forged("nic/0", 1)], START, published=True) == ()
    assert len(ledger.memory().made.findings) == LIMIT  # type: ignore[union-attr]


@pytest.mark.parametrize("entry", [forged("", 4), forged("*", 4), forged("gpu/0", 0)])
def test_what_opens_no_fault_is_not_disowned(entry: ReportedFinding) -> None:
    """Such an entry would make the agent's whole report invalid."""
    ledger = Ledger("dmesg", BOOT)
    assert ledger.disown([entry], START, published=True) == ()
    assert ledger.over() == ()
