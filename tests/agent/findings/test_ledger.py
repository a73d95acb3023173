"""The ledger: numbers that rise, clears that close only the past, bounds that keep the worst."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster_agent.findings.health_status import CheckView, compose_status
from muster_agent.findings.ledger import OPEN_LIMIT, Ledger, TransitionKind
from muster_agent.findings.ledger_seed import seed_ledger
from muster_agent.findings.stored_ledger import StoredLedger
from muster_checks.base.declaration import AllClear, Sign
from muster_checks.base.vocabulary import FINDINGS_LIMIT, FaultClass, Finding, Origin, Result, Verdict
from muster_kube import nodehealth
from muster_kube.api.times import rfc3339
from muster_kube.nodehealth import CLEARED_LIMIT, AgentIdentity, ClearEntry, Metadata, NodeHealth, NodeHealthSpec

BOOT = "11111111-2222-3333-4444-555555555555"
START = 1_700_000_000.0


def sign(component="gpu/0", reason="Xid79", verdict=Verdict.FAIL, at=START, **rest) -> Sign:
    return Sign(component=component, reason=reason, verdict=verdict, message=f"{reason} at {at}", at=at, **rest)


def all_clear(component="gpu/0", at=START, how="driver", **rest) -> AllClear:
    return AllClear(component=component, at=at, how=how, **rest)


def reported(ledger: Ledger, clears: tuple[ClearEntry, ...] = ()) -> NodeHealth:
    """The NodeHealth after ``ledger`` was published."""
    findings, more = ledger.published()
    view = CheckView(
        name=ledger.check, verdict=ledger.verdict(), findings=findings, more_findings=more, over=ledger.over()
    )
    status = compose_status([view], boot_id=ledger.boot_id, agent=AgentIdentity(pod_uid="pod", version="1"))
    decoded = msgspec.json.decode(
        msgspec.json.encode(NodeHealth(metadata=Metadata(name="n"), spec=NodeHealthSpec(clear=clears), status=status)),
        type=NodeHealth,
    )
    assert decoded.status == status
    return decoded


# --- one firing after another


def test_a_finding_counts_its_signs_and_keeps_its_number():
    ledger = Ledger("dmesg", BOOT)
    first = ledger.take([sign(at=START)])
    again = ledger.take([sign(at=START + 5, count=3)])
    assert [(t.step, t.finding.occurrence) for t in first] == [(TransitionKind.OPENED, 1)]
    assert again == []
    (finding,) = ledger.open_findings()
    assert (finding.count, finding.first_seen, finding.last_seen, finding.occurrence) == (4, START, START + 5, 1)


def test_a_verdict_is_never_lowered_within_an_occurrence():
    ledger = Ledger("dmesg", BOOT)
    ledger.take([sign(verdict=Verdict.WARN), sign(verdict=Verdict.FAIL, fault_class=FaultClass.RESET)])
    ledger.take([sign(verdict=Verdict.WARN, at=START + 9)])
    (finding,) = ledger.open_findings()
    assert finding.verdict is Verdict.FAIL
    assert finding.fault_class is FaultClass.RESET
    assert finding.message == f"Xid79 at {START}", "the message of the worst sign explains the verdict"
    assert finding.last_seen == START + 9


def test_a_worse_sign_is_a_transition():
    ledger = Ledger("dmesg", BOOT)
    ledger.take([sign(verdict=Verdict.WARN)])
    (step,) = ledger.take([sign(verdict=Verdict.FAIL, line="[1.0] NVRM")])
    assert (step.step, step.finding.verdict, step.line) == (TransitionKind.WORSENED, Verdict.FAIL, "[1.0] NVRM")


def test_one_line_from_user_space_makes_the_finding_user_made():
    ledger = Ledger("dmesg", BOOT)
    ledger.take([sign(origin=Origin.KERNEL), sign(origin=Origin.USER), sign(origin=Origin.KERNEL)])
    assert ledger.open_findings()[0].origin is Origin.USER


def test_what_fires_after_it_was_over_gets_a_higher_number_through_the_whole_check():
    ledger = Ledger("dmesg", BOOT)
    ledger.take([sign(reason="Xid48"), sign(reason="Xid79"), all_clear(reasons=("Xid48",)), sign(reason="Xid48")])
    assert {f.reason: f.occurrence for f in ledger.open_findings()} == {"Xid79": 2, "Xid48": 3}
    assert [(o.reason, o.occurrence, o.how) for o in ledger.over()] == [("Xid48", 1, "driver")]


def test_an_all_clear_closes_only_its_component_reasons_and_classes():
    ledger = Ledger("dmesg", BOOT)
    ledger.take(
        [
            sign("gpu/0", "Xid48", fault_class=FaultClass.RESET),
            sign("gpu/0", "Xid79", fault_class=FaultClass.REBOOT),
            sign("gpu/1", "Xid48", fault_class=FaultClass.RESET),
        ]
    )
    ledger.take([all_clear("gpu/0", classes=(FaultClass.RESET,))])
    assert {f.key for f in ledger.open_findings()} == {("gpu/0", "Xid79"), ("gpu/1", "Xid48")}


def test_silence_closes_a_warning_but_never_a_failure():
    ledger = Ledger("dmesg", BOOT)
    ledger.take([sign(reason="Xid31", verdict=Verdict.WARN), sign(reason="Xid79", verdict=Verdict.FAIL)])
    ledger.take([all_clear(how="quiet")])
    assert [f.reason for f in ledger.open_findings()] == ["Xid79"]


def test_a_request_closes_up_to_its_number_and_nothing_that_fires_later():
    ledger = Ledger("dmesg", BOOT)
    ledger.take([sign(reason="Xid48"), sign(reason="Xid79")])
    clears = [ClearEntry(check="dmesg", component="*", occurrence=1, by="ann", at=rfc3339(START + 10))]
    (step,) = ledger.apply_clears(clears, START + 10)
    assert (step.step, step.finding.reason, step.how) == (TransitionKind.CLEARED, "Xid48", "request")
    ledger.take([sign(reason="Xid48", at=START + 20)])
    assert ledger.apply_clears(clears, START + 30) == []
    assert {f.reason: f.occurrence for f in ledger.open_findings()} == {"Xid79": 2, "Xid48": 3}


@pytest.mark.parametrize("number", [nodehealth.OCCURRENCE_GAP + 2, 2**31, 2**53, 2**63 - 1])
def test_a_request_with_a_number_far_above_the_last_is_refused(number):
    ledger = Ledger("dmesg", BOOT)
    ledger.take([sign()])
    clears = [ClearEntry(check="dmesg", component="*", occurrence=number, at=rfc3339(START + 5))]
    assert ledger.apply_clears(clears, START + 5) == []
    ledger.take([sign("gpu/1", at=START + 6)])
    assert sorted(f.occurrence for f in ledger.open_findings()) == [1, 2]


def test_a_request_with_a_number_that_was_never_given_closes_nothing_that_fires_later():
    ledger = Ledger("dmesg", BOOT)
    clears = [ClearEntry(check="dmesg", component="*", occurrence=500, at=rfc3339(START))]
    ledger.apply_clears(clears, START)
    ledger.take([sign(at=START + 1)])
    assert ledger.open_findings()[0].occurrence == 501


def test_a_request_closes_only_what_had_fired_when_it_was_written():
    """The API server was away for this agent: the request arrives after the same line, and after another one."""
    ledger = Ledger("dmesg", BOOT)
    ledger.take([sign(at=START)])
    ledger.take([sign(at=START + 20), sign("gpu/1", at=START + 25)])
    clears = [ClearEntry(check="dmesg", component="*", occurrence=7, at=rfc3339(START + 10))]
    steps = ledger.apply_clears(clears, START + 60)
    assert [t.step for t in steps] == [TransitionKind.CLEARED, TransitionKind.OPENED]
    found = {f.component: (f.verdict, f.first_seen) for f in ledger.open_findings()}
    assert found == {"gpu/0": (Verdict.FAIL, START + 20), "gpu/1": (Verdict.FAIL, START + 25)}
    assert all(f.occurrence > 7 for f in ledger.open_findings()), "a number that the request names counts for nothing"
    assert ledger.apply_clears(clears, START + 90) == []


def test_a_request_without_a_time_closes_what_its_writer_could_see():
    ledger = Ledger("dmesg", BOOT)
    ledger.take([sign(at=START)])
    clears = [ClearEntry(check="dmesg", component="*", occurrence=1)]
    published = {("gpu/0", "Xid79", 1): START}
    ledger.take([sign(at=START + 20)])
    ledger.apply_clears(clears, START + 60, published)
    assert [(f.occurrence, f.first_seen) for f in ledger.open_findings()] == [(2, START + 20)]
    ledger.apply_clears(
        [msgspec.structs.replace(clears[0], occurrence=2)], START + 61, {("gpu/0", "Xid79", 2): START + 20}
    )
    assert ledger.open_findings() == []


def test_of_the_signs_after_a_request_the_worst_counts_and_survives_a_restart():
    ledger = Ledger("dmesg", BOOT)
    ledger.take([sign(at=START, verdict=Verdict.FAIL)])
    ledger.take([sign(at=START + 20, verdict=Verdict.FAIL), sign(at=START + 30, verdict=Verdict.WARN)])
    stored = msgspec.json.decode(msgspec.json.encode(ledger.memory()), type=StoredLedger)
    for again, cleared_at, verdict in (
        (Ledger("dmesg", BOOT, stored), START + 10, Verdict.FAIL),
        (Ledger("dmesg", BOOT, stored), START + 25, Verdict.WARN),
    ):
        again.apply_clears([ClearEntry(check="dmesg", component="*", occurrence=1, at=rfc3339(cleared_at))], START + 60)
        assert [(f.verdict, f.occurrence) for f in again.open_findings()] == [(verdict, 2)]


def test_a_lost_state_file_does_not_hide_a_line_after_a_request():
    old = Ledger("dmesg", BOOT)
    old.take([sign(at=START)])
    clear = ClearEntry(check="dmesg", component="*", occurrence=1, at=rfc3339(START + 10))
    ledger = seed_ledger("dmesg", BOOT, reported(old, (clear,)))
    ledger.apply_clears([clear], START + 60, {("gpu/0", "Xid79", 1): START})
    ledger.take([sign(at=START), sign(at=START + 20)])
    assert [(f.occurrence, f.first_seen) for f in ledger.open_findings()] == [(2, START + 20)]


def test_a_request_for_another_check_or_component_closes_nothing():
    ledger = Ledger("dmesg", BOOT)
    ledger.take([sign()])
    other = [
        ClearEntry(check="pciebw", component="*", occurrence=9),
        ClearEntry(check="dmesg", component="gpu/1", occurrence=9),
    ]
    assert ledger.apply_clears(other, START) == []


def test_a_new_boot_drops_the_findings_and_the_counter_goes_on():
    ledger = Ledger("dmesg", BOOT)
    ledger.take([sign()])
    reborn = Ledger("dmesg", "another-boot", ledger.memory())
    assert reborn.open_findings() == []
    assert reborn.over() == ()
    reborn.take([sign(at=START + 100)])
    assert reborn.open_findings()[0].occurrence == 2


# --- bounds


def test_sixty_four_are_published_worst_first_and_the_rest_is_a_number():
    ledger = Ledger("dmesg", BOOT)
    ledger.take([sign(component=f"gpu/{n}", verdict=Verdict.WARN) for n in range(FINDINGS_LIMIT + 10)])
    ledger.take([sign(component="gpu/bad", verdict=Verdict.FAIL)])
    findings, more = ledger.published()
    assert len(findings) == FINDINGS_LIMIT
    assert more == 11
    assert findings[0].component == "gpu/bad"


def test_a_flood_of_made_up_components_from_user_space_pushes_out_no_line_of_the_kernel():
    ledger = Ledger("dmesg", BOOT)
    ledger.take([sign(component=f"gpu/made-up-{n}", origin=Origin.USER) for n in range(5_000)])
    assert len(ledger.open_findings()) == OPEN_LIMIT
    spent = ledger.counter
    ledger.take([sign(component="gpu/real", origin=Origin.KERNEL)])
    assert ledger.published()[0][0].component == "gpu/real"
    ledger.take([sign(component=f"gpu/more-{n}", origin=Origin.USER) for n in range(5_000)])
    assert ledger.published()[0][0].component == "gpu/real"
    assert ledger.counter == spent + 1, "what is not kept is given no number"


# --- runs of snapshot checks


def run(*findings: Finding, verdict=Verdict.FAIL, started=START) -> Result:
    return Result(check="remapped", verdict=verdict, findings=findings, started=started, duration_s=1.0)


def bad(component: str, verdict=Verdict.FAIL, reason="RowRemapFailed") -> Finding:
    return Finding(component=component, verdict=verdict, reason=reason, message="remapping failed")


def test_a_run_that_passed_closes_what_it_no_longer_finds():
    ledger = Ledger("remapped", BOOT)
    ledger.take_run(run(bad("gpu/0"), bad("gpu/1")))
    steps = ledger.take_run(run(bad("gpu/0", Verdict.PASS, "Ok"), bad("gpu/1"), started=START + 60))
    assert [(t.step, t.finding.component, t.how) for t in steps] == [(TransitionKind.CLEARED, "gpu/0", "run")]
    assert ledger.open_findings()[0].count == 2


def test_a_component_that_is_merely_absent_is_not_sound():
    ledger = Ledger("disk", BOOT)
    ledger.take_run(run(bad("disk/nvme0"), bad("disk/sdb", Verdict.WARN), bad("disk/sda", Verdict.PASS, "Ok")))
    steps = ledger.take_run(run(bad("disk/sda", Verdict.PASS, "Ok"), verdict=Verdict.PASS))
    assert [t.finding.component for t in steps] == ["disk/sdb"], "a warning goes, a fault stays"
    assert [f.component for f in ledger.open_findings()] == ["disk/nvme0"]


@pytest.mark.parametrize("whole", ["host", "sel"])
def test_a_pass_of_the_whole_device_clears_its_parts(whole: str):
    ledger = Ledger("ipmi", BOOT)
    ledger.take_run(run(bad("sel/DIMM_A1")))
    assert len(ledger.take_run(run(bad(whole, Verdict.PASS, "Ok"), verdict=Verdict.PASS))) == 1


@pytest.mark.parametrize("others", [(), (("host", Verdict.PASS),)])
@pytest.mark.parametrize("verdict", [Verdict.FAIL, Verdict.WARN])
def test_a_group_that_could_not_be_read_keeps_its_parts(verdict: Verdict, others: tuple[tuple[str, Verdict], ...]):
    ledger = Ledger("ipmi", BOOT)
    ledger.take_run(run(bad("sel/DIMM_A1", verdict)))
    rest = [bad(component, passed, "Ok") for component, passed in (("sensors", Verdict.PASS), *others)]
    ledger.take_run(run(bad("sel", Verdict.UNKNOWN, "NotReadable"), *rest, verdict=Verdict.UNKNOWN))
    assert ("sel/DIMM_A1", "RowRemapFailed") in {finding.key for finding in ledger.open_findings()}


@pytest.mark.parametrize("also", [(), (("host", Verdict.PASS),)])
def test_a_part_that_is_missing_is_not_sound_because_its_host_is_not(also: tuple[tuple[str, Verdict], ...]):
    ledger = Ledger("disk", BOOT)
    ledger.take_run(run(bad("disk/nvme3")))
    rest = [bad(component, passed, "Ok") for component, passed in also]
    ledger.take_run(run(bad("host", reason="NvmeMissing"), *rest))
    assert {finding.component for finding in ledger.open_findings()} == {"disk/nvme3", "host"}
    ledger.take_run(run(bad("host", Verdict.PASS, "Ok"), bad("disk/nvme3", Verdict.PASS, "Ok"), verdict=Verdict.PASS))
    assert not ledger.open_findings()


def test_a_run_that_passes_without_findings_clears_what_was_open():
    ledger = Ledger("plugin", BOOT)
    ledger.take_run(run(bad("gpu/0")))
    assert len(ledger.take_run(run(verdict=Verdict.PASS))) == 1


def test_a_test_that_was_left_out_keeps_what_it_found_before():
    ledger = Ledger("dcgm", BOOT)
    ledger.take_run(run(bad("gpu/0", reason="DcgmMemory"), bad("gpu/0", reason="DcgmPcie")))
    left_out = bad("gpu/0", Verdict.SKIP, "DcgmMemory")
    steps = ledger.take_run(run(left_out, bad("gpu/0", Verdict.PASS, "Passed"), verdict=Verdict.PASS))
    assert [t.finding.reason for t in steps] == ["DcgmPcie"]


def test_what_a_run_finds_sound_is_over_whatever_else_it_could_not_measure():
    ledger = Ledger("c", boot_id="b")
    ledger.take_run(run(bad("host", reason="One"), bad("host", reason="Two")))
    unknown = bad("host", Verdict.UNKNOWN, "Three")
    steps = ledger.take_run(run(bad("host", Verdict.PASS, "One"), unknown, verdict=Verdict.UNKNOWN))
    assert [(t.step, t.finding.reason) for t in steps] == [
        (TransitionKind.CLEARED, "One"),
        (TransitionKind.OPENED, "Three"),
    ]
    assert {finding.reason for finding in ledger.open_findings()} == {"Two", "Three"}


def test_a_run_that_measured_nothing_closes_nothing():
    ledger = Ledger("remapped", BOOT)
    ledger.take_run(run(bad("gpu/0")))
    assert ledger.take_run(run(verdict=Verdict.UNKNOWN)) == []
    assert ledger.take_run(run(verdict=Verdict.SKIP)) == []
    blind = bad("gpu/0", Verdict.UNKNOWN, "Unreadable")
    assert [t.step for t in ledger.take_run(run(blind, verdict=Verdict.UNKNOWN))] == [TransitionKind.OPENED]
    assert {f.key for f in ledger.open_findings()} == {("gpu/0", "RowRemapFailed"), ("gpu/0", "Unreadable")}


# --- random lives

events = st.one_of(
    st.builds(
        sign,
        component=st.sampled_from(["gpu/0", "gpu/1", "host"]),
        reason=st.sampled_from(["Xid31", "Xid48", "Xid79"]),
        verdict=st.sampled_from([Verdict.WARN, Verdict.FAIL]),
        fault_class=st.sampled_from(list(FaultClass)),
        origin=st.sampled_from([Origin.KERNEL, Origin.USER]),
    ),
    st.builds(
        all_clear,
        component=st.sampled_from(["gpu/0", "gpu/1", "host"]),
        how=st.sampled_from(["driver", "quiet"]),
        reasons=st.sampled_from([(), ("Xid48",), ("Xid31", "Xid79")]),
        classes=st.sampled_from([(), (FaultClass.RESET,)]),
    ),
    st.builds(
        ClearEntry,
        check=st.just("dmesg"),
        component=st.sampled_from(["*", "gpu/0"]),
        occurrence=st.integers(min_value=0, max_value=12),
    ),
)
lives = st.lists(events, max_size=40)


def feed(ledger: Ledger, event, at: float):
    if isinstance(event, ClearEntry):
        return ledger.apply_clears([msgspec.structs.replace(event, at=rfc3339(at))], at)
    return ledger.take([msgspec.structs.replace(event, at=at)])


@given(lives)
def test_numbers_rise_strictly_and_a_clear_never_closes_what_fires_later(life):
    ledger = Ledger("dmesg", BOOT)
    clears: list[ClearEntry] = []
    highest = 0
    for n, event in enumerate(life):
        if isinstance(event, ClearEntry):
            clears.append(msgspec.structs.replace(event, at=rfc3339(START + n)))
        for step in feed(ledger, event, START + n):
            if step.step is TransitionKind.OPENED:
                assert step.finding.occurrence > highest
                highest = step.finding.occurrence
        assert ledger.apply_clears(clears, START + n) == [], "an old request closed a new firing"
        numbers = [f.occurrence for f in ledger.open_findings()] + [o.occurrence for o in ledger.over()]
        assert len(numbers) == len(set(numbers))
        assert len(ledger.over()) <= CLEARED_LIMIT


@given(lives, st.sets(st.integers(min_value=0, max_value=40)))
def test_a_restart_at_any_point_equals_no_restart(life, restarts):
    steady = Ledger("dmesg", BOOT)
    restarted = Ledger("dmesg", BOOT)
    for n, event in enumerate(life):
        feed(steady, event, START + n)
        feed(restarted, event, START + n)
        if n in restarts:
            stored = msgspec.json.encode(restarted.memory())
            restarted = Ledger("dmesg", BOOT, msgspec.json.decode(stored, type=StoredLedger))
    assert restarted.memory() == steady.memory()


@given(lives, st.integers(min_value=0, max_value=40))
def test_a_lost_state_file_neither_reopens_the_closed_nor_loses_the_open(life, lost_at):
    """The log is read again from its beginning; what had been told by ``lost_at`` keeps its number and its end."""
    gap = 10.0  # seconds between lines, well above the tolerance for clocks that were stepped
    steady = Ledger("dmesg", BOOT)
    health = reported(steady)
    clears: tuple[ClearEntry, ...] = ()
    for n, event in enumerate(life):
        feed(steady, event, START + n * gap)
        if isinstance(event, ClearEntry):
            clears = (*clears, msgspec.structs.replace(event, at=rfc3339(START + n * gap)))
        if n < lost_at:
            health = reported(steady, clears)
    told_open = {(f.component, f.reason): f.occurrence for c in health.status.checks for f in c.findings}
    told_numbers = [o.occurrence for c in health.status.checks for o in c.cleared] + list(told_open.values())

    again = seed_ledger("dmesg", BOOT, health)
    told_clears = health.spec.clear
    for n, event in enumerate(life):
        told = (
            isinstance(event, ClearEntry) and msgspec.structs.replace(event, at=rfc3339(START + n * gap)) in told_clears
        )
        if told:
            continue
        for step in feed(again, event, START + n * gap):
            if step.step is TransitionKind.OPENED:
                assert n >= lost_at, "a line of the past was taken for a new firing"
                assert step.finding.occurrence > max(told_numbers, default=0)
    again.end_replay()
    assert not again.replaying
    if not any(isinstance(event, ClearEntry) for event in life[lost_at:]):
        assert {(f.key, f.verdict) for f in again.open_findings()} == {
            (f.key, f.verdict) for f in steady.open_findings()
        }
    still = {f.key: f.occurrence for f in steady.open_findings()}
    for finding in again.open_findings():
        if told_open.get(finding.key) == still.get(finding.key) is not None:
            assert finding.occurrence == told_open[finding.key]


def test_a_seed_from_another_boot_keeps_only_the_numbers():
    old = Ledger("dmesg", "former-boot")
    old.take([sign(), all_clear(), sign(at=START + 5)])
    ledger = seed_ledger("dmesg", BOOT, reported(old, (ClearEntry(check="dmesg", component="*", occurrence=7),)))
    assert ledger.open_findings() == []
    assert not ledger.replaying
    ledger.take([sign(at=START + 1)])
    assert ledger.open_findings()[0].occurrence == 8


def test_a_seed_leaves_out_what_people_edited_into_nonsense():
    ledger = Ledger("dmesg", BOOT)
    ledger.take([sign()])
    health = reported(ledger)
    raw = msgspec.json.encode(health).replace(b'"FAIL"', b'"BROKEN"')
    assert seed_ledger("dmesg", BOOT, msgspec.json.decode(raw, type=NodeHealth)).open_findings() == []


def test_absurd_times_and_numbers_edited_in_by_people_do_not_stop_the_agent():
    biggest = 2**63 - 1
    finding = nodehealth.ReportedFinding(
        component="gpu/0",
        reason="Xid79",
        verdict="FAIL",
        first_seen="9999-12-31T23:59:59-23:59",
        last_seen="9999-12-31T23:59:59-23:59",
        count=biggest,
        occurrence=biggest,
    )
    over = nodehealth.ClearedFault(
        component="gpu/1", reason="Xid79", occurrence=biggest, how="driver", at="9999-12-31T23:59:59-23:59"
    )
    check = nodehealth.ReportedCheck(name="dmesg", verdict="FAIL", findings=(finding,), cleared=(over,))
    status = nodehealth.NodeHealthStatus(boot_id=BOOT, checks=(check,))
    ledger = seed_ledger("dmesg", BOOT, NodeHealth(metadata=Metadata(name="n1"), status=status))
    ledger.end_replay()
    ledger.take([sign("gpu/0"), sign("gpu/2")])
    findings, _ = ledger.published()
    view = CheckView(name="dmesg", verdict=ledger.verdict(), findings=findings, over=ledger.over())
    written = compose_status([view], boot_id=BOOT, agent=AgentIdentity(pod_uid="u", version="1")).checks[0]
    assert written.findings[0].last_seen == "9999-12-31T23:59:59.000Z"
    assert all(f.count <= biggest for f in written.findings)
    assert sorted(f.occurrence for f in written.findings) == [1, 2], "counting begins anew"
    assert written.cleared == (), "published again, it would live for good"


def test_more_ends_than_are_listed_are_still_not_taken_for_news():
    ledger = Ledger("dmesg", BOOT)
    life = []
    for n in range(CLEARED_LIMIT + 5):
        life += [sign(f"gpu/{n}", at=START + 20 * n), all_clear(f"gpu/{n}", at=START + 20 * n + 10)]
    ledger.take(life)
    again = seed_ledger("dmesg", BOOT, reported(ledger))
    assert again.take(life) == []
    assert [t.step for t in again.take([sign("gpu/0", at=START + 10_000)])] == [TransitionKind.OPENED]
