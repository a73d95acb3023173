"""Floods, quiet, and the worst verdict of a finding."""

from hypothesis import given
from hypothesis import strategies as st

from muster_checks.base.declaration import AllClear, Sign
from muster_checks.base.vocabulary import FaultClass, Origin, Verdict
from muster_checks.dmesg.open_findings import FINDINGS_LIMIT, OpenFindings

XID13 = "NVRM: Xid (PCI:0000:b3:00): 13, pid=1"
XID48 = "NVRM: Xid (PCI:0000:b3:00): 48, pid=1"
GPU = "gpu/0000:b3:00.0"


def test_a_flood_of_one_kind_is_one_sign_a_second_with_every_line_counted(bench):
    signs, lines = [], 4500
    for number in range(lines):
        signs += bench.feed(XID13, 60.0 * number / lines)
    signs += bench.tick(70)
    assert 59 <= len(signs) <= 61
    assert signs[0].count == 1
    assert sum(sign.count for sign in signs) == lines


def test_the_first_sign_comes_at_once_and_the_rest_by_the_next_tick(bench):
    assert len(bench.feed(XID13, 10.0)) == 1
    assert bench.feed(XID13, 10.1, user=True) == []
    assert bench.feed(XID13, 10.2) == []
    assert bench.next_tick_s() == 11.0
    assert bench.tick(10.9) == []
    (sign,) = bench.tick(11.0)
    assert (sign.count, sign.origin) == (2, Origin.USER)  # user as soon as one line came from there
    assert bench.tick(12.5) == []


def test_a_worse_verdict_comes_at_once_with_those_held_back(bench):
    bench.feed("NVRM: Xid (PCI:0000:b3:00): 154, GPU recovery action changed from 0x0 (None) to 0x4 (Drain P2P)")
    for verdict, asks, word in [("FAIL", "reset", "GPU Reset Required"), ("FAIL", "reboot", "Node Reboot Required")]:
        (sign,) = bench.feed(f"NVRM: Xid (PCI:0000:b3:00): 154, changed from 0x0 (None) to 0x1 ({word})", 0.1)
        assert (sign.verdict, sign.fault_class) == (verdict, asks)


def test_a_verdict_is_never_lowered_while_its_finding_is_open(bench):
    def changed(action, after_s):
        (sign,) = bench.feed(f"NVRM: Xid (PCI:0000:b3:00): 154, from 0x0 (None) to 0x1 ({action})", after_s)
        return str(sign.verdict), str(sign.fault_class)

    assert changed("Node Reboot Required", 0) == ("FAIL", "reboot")
    assert changed("GPU Reset Required", 5) == ("FAIL", "reboot")
    assert changed("Drain P2P", 10) == ("FAIL", "reboot")
    assert bench.restart() == ""
    assert changed("Drain P2P", 15) == ("FAIL", "reboot")
    bench.judge.forget(GPU, ("Xid154",))  # a person closed it
    assert changed("Drain P2P", 20) == ("WARN", "restart-app")


def test_a_warning_is_over_when_it_has_been_quiet(bench, summarize):
    bench.feed(XID13, 0)
    bench.feed(XID13, 1000)
    assert bench.tick(4599) == []
    assert summarize(bench.tick(4600)) == [(GPU, "quiet", ("Xid13",), ())]
    assert bench.tick(99999) == []
    assert bench.next_tick_s() is None


def test_a_failure_never_goes_by_silence(bench):
    bench.feed(XID48, 0)
    assert bench.next_tick_s() is None
    assert bench.tick(10 * 365 * 86400.0) == []


def test_a_warning_that_became_a_failure_never_goes_by_silence(bench):
    bench.feed("NVRM: Xid (PCI:0000:b3:00): 154, from 0x0 (None) to 0x4 (Drain P2P)")
    bench.feed("NVRM: Xid (PCI:0000:b3:00): 154, from 0x0 (None) to 0x1 (GPU Reset Required)", 5)
    bench.feed("NVRM: Xid (PCI:0000:b3:00): 154, from 0x0 (None) to 0x4 (Drain P2P)", 10)
    assert bench.tick(1e7) == []


def test_an_old_warning_read_again_is_not_raised_and_an_old_failure_is(bench, summarize):
    bench.now_s = 100_000.0
    assert bench.feed(XID13, 0.0) == []
    assert bench.judge.counters.stale == 1
    assert summarize(bench.feed(XID48, 0.0)) == [(GPU, "Xid48", "FAIL", "reset")]
    assert summarize(bench.feed(XID13, 97_000.0)) == [(GPU, "Xid13", "WARN", "restart-app")]


def test_a_backlog_is_joined_by_its_lines_own_times(bench):
    bench.now_s = 3000.0
    signs = []
    for number in range(1000):
        signs += bench.feed(XID13, number / 100)
        if number % 100 == 50:
            signs += bench.tick(3000.0)  # the reader comes up for air
    signs += bench.tick(3000.0)
    assert len(signs) <= 22
    assert sum(sign.count for sign in signs) == 1000


def test_a_clock_set_back_holds_nothing(bench):
    bench.feed(XID13, 5000)
    assert len(bench.feed(XID13, 3000)) == 1


def test_an_all_clear_brings_what_was_held_back_first(bench):
    bench.feed("NVRM: Xid (PCI:0000:b3:00): 163", 0)
    bench.feed("NVRM: Xid (PCI:0000:b3:00): 163", 0.1)
    sign, cleared = bench.feed("NVRM: Xid (PCI:0000:b3:00): 162", 0.2)
    assert sign.count == 1
    assert isinstance(cleared, AllClear)


def _sign(number, verdict=Verdict.WARN, at=0.0):
    return Sign(component=f"gpu/{number}", reason="R", verdict=verdict, message="", at=at)


def test_for_want_of_room_the_oldest_warning_is_called_over_and_no_failure_is_touched():
    findings = OpenFindings()
    findings.take(_sign("bad", Verdict.FAIL), 3600)
    for number in range(FINDINGS_LIMIT):
        assert len(findings.take(_sign(number, at=number), 3600)) == 1
    findings.take(_sign(1, at=1.5), 3600)
    over, sign = findings.take(_sign("one more", at=5000.0), 3600)
    assert isinstance(over, AllClear)
    assert isinstance(sign, Sign)
    assert (over.component, over.how) == ("gpu/0", "quiet")
    assert findings.is_open("gpu/bad", "R")
    assert findings.evicted == 1
    assert len(findings) == FINDINGS_LIMIT + 1


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["a", "b", "c"]),
            st.sampled_from(list(FaultClass)),
            st.sampled_from([Verdict.WARN, Verdict.FAIL]),
            st.floats(0, 3),
            st.sampled_from(["sign", "sign", "tick", "clear", "restart"]),
        ),
        max_size=60,
    )
)
def test_no_sign_is_ever_lost_or_lowered(steps):
    findings, at, taken, given_out = OpenFindings(), 0.0, 0, 0
    worst: dict[str, Verdict] = {}
    for component, asks, verdict, wait_s, what in steps:
        at += wait_s
        if what == "tick":
            events = findings.tick(at)
        elif what == "clear":
            events = findings.clear(AllClear(component=component, at=at, how="driver", reasons=("R",)))
        elif what == "restart":
            findings, events = OpenFindings.load(findings.dump()), []
        elif findings.count_more(component, "R", verdict, asks, at, None, 1):  # as the judge asks before each sign
            taken, events = taken + 1, []
        else:
            taken += 1
            sign = Sign(component=component, reason="R", verdict=verdict, message="", at=at, fault_class=asks)
            events = findings.take(sign, 5.0)
        for event in events:
            if isinstance(event, AllClear):
                worst.pop(event.component, None)
            else:
                given_out += event.count
                assert event.verdict is Verdict.FAIL or worst.get(event.component) is not Verdict.FAIL
                worst[event.component] = event.verdict
        due = findings.next_tick()
        assert due is None or due <= at + 5.0
    rest = findings.tick(at + 1.0)
    assert given_out + sum(event.count for event in rest if isinstance(event, Sign)) == taken


def test_after_a_person_closed_it_the_next_line_is_told_at_once(bench):
    bench.feed(XID48, 0)
    bench.judge.forget(GPU, ("Xid48",))
    (sign,) = bench.feed(XID48, 0.1)  # not held back as one more of the same
    assert sign.count == 1


def test_what_was_counted_for_a_closed_finding_counts_no_more_and_other_rows_go_on_counting(bench):
    def locked(after_s):
        return bench.feed("watchdog: BUG: soft lockup - CPU#0 stuck for 27s! [x:1]", after_s)

    for second in range(5):
        signs = locked(second)
    assert any(sign.verdict == Verdict.FAIL for sign in signs)
    reasons = tuple({sign.reason for sign in signs})
    bench.judge.forget("host", ("SomethingElse",))
    assert any(sign.verdict == Verdict.FAIL for sign in [*locked(5), *bench.tick(7)])
    bench.judge.forget("host", (*reasons, "SoftLockup"))
    assert not any(sign.verdict == Verdict.FAIL for sign in [*locked(8), *bench.tick(10)])
