"""The history of a check's verdict: each change once, in an unbroken chain, the newest hundred."""

from itertools import pairwise

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster_agent.findings.verdict_history import CHANGES_LIMIT, VerdictChange, VerdictHistory
from muster_checks.base.vocabulary import Verdict


def reported(changes: VerdictHistory) -> list[tuple[float, str, str]]:
    return [(change.at, change.old, change.to) for change in changes.entries]


def test_the_first_verdict_begins_the_history():
    changes = VerdictHistory()
    assert changes.record(1.0, None, Verdict.PASS)
    assert changes.record(2.0, Verdict.PASS, Verdict.FAIL, "Slow", "3 GB/s")
    assert reported(changes) == [(1.0, "", "PASS"), (2.0, "PASS", "FAIL")]
    assert (changes.entries[1].reason, changes.entries[1].message) == ("Slow", "3 GB/s")


def test_the_same_verdict_again_is_no_change():
    changes = VerdictHistory()
    changes.record(1.0, None, Verdict.FAIL, "Slow")
    assert not changes.record(2.0, Verdict.FAIL, Verdict.FAIL, "Slower")
    assert not changes.record(3.0, None, Verdict.FAIL, "Slow")
    assert reported(changes) == [(1.0, "", "FAIL")]


def test_an_agent_that_has_just_started_has_changed_nothing():
    changes = VerdictHistory([VerdictChange(at=1.0, to="PASS")])
    assert not changes.record(2.0, Verdict.PASS, Verdict.UNKNOWN, "Starting", "reading")
    assert not changes.record(3.0, Verdict.UNKNOWN, Verdict.PASS)
    assert changes.record(4.0, Verdict.PASS, Verdict.UNKNOWN, "Timeout")
    assert reported(changes) == [(1.0, "", "PASS"), (4.0, "PASS", "UNKNOWN")]


def test_a_history_that_was_lost_begins_with_what_the_caller_knows():
    changes = VerdictHistory()
    changes.record(5.0, Verdict.FAIL, Verdict.PASS)
    assert reported(changes) == [(5.0, "FAIL", "PASS")]


def test_what_is_kept_is_bounded():
    changes = VerdictHistory()
    for n in range(3 * CHANGES_LIMIT):
        changes.record(float(n), None, Verdict.FAIL if n % 2 else Verdict.PASS, "R" * 999, "m" * 9999)
    assert len(changes.entries) == CHANGES_LIMIT
    assert changes.entries[-1].at == 3 * CHANGES_LIMIT - 1
    assert len(msgspec.json.encode(changes.entries)) < 60_000
    assert len(VerdictHistory(changes.entries * 5).entries) == CHANGES_LIMIT


def test_in_json_a_change_has_from_and_to():
    assert msgspec.json.encode(VerdictChange(at=1.5, old="PASS", to="FAIL", reason="Slow")) == (
        b'{"at":1.5,"from":"PASS","to":"FAIL","reason":"Slow"}'
    )


@given(st.lists(st.tuples(st.sampled_from(list(Verdict)), st.booleans()), max_size=150))
@settings(max_examples=100, deadline=None)
def test_the_chain_is_unbroken_also_over_restarts(steps: list[tuple[Verdict, bool]]):
    """``True``: the agent dies before it has saved the step, and meets the same verdict again."""
    saved: tuple[VerdictChange, ...] = ()
    known: Verdict | None = None
    for n, (verdict, dies) in enumerate(steps):
        VerdictHistory(saved).record(float(n), known, verdict)
        if dies:
            continue
        changes = VerdictHistory(saved)
        changes.record(float(n), known, verdict)
        saved, known = changes.entries, verdict
    assert all(before.to == after.old != after.to for before, after in pairwise(saved))
    assert (saved[-1].to if saved else None) == known


# --- told, but not saved before the end

PASS, FAIL, UNKNOWN = Verdict.PASS, Verdict.FAIL, Verdict.UNKNOWN


@pytest.mark.parametrize(
    ("kept", "reported", "known"),
    [
        ([], (5.0, FAIL), [(5.0, "", "FAIL")]),
        ([(1.0, PASS)], (5.0, FAIL), [(1.0, "", "PASS"), (5.0, "PASS", "FAIL")]),
        ([(1.0, PASS)], (5.0, PASS), [(1.0, "", "PASS")]),
        # the successor has found the same again, a little later
        ([(1.0, PASS), (9.0, FAIL)], (5.0, FAIL), [(1.0, "", "PASS"), (5.0, "PASS", "FAIL")]),
        # or something else
        (
            [(1.0, PASS), (9.0, UNKNOWN)],
            (5.0, FAIL),
            [(1.0, "", "PASS"), (5.0, "PASS", "FAIL"), (9.0, "FAIL", "UNKNOWN")],
        ),
        # saved, but what stands in the NodeHealth is of before
        ([(1.0, PASS), (9.0, FAIL)], (1.0, PASS), [(1.0, "", "PASS"), (9.0, "PASS", "FAIL")]),
        # times travel in whole milliseconds, which are a bit earlier
        ([(1.0009, PASS), (9.0, FAIL)], (1.0, PASS), [(1.0, "", "PASS"), (9.0, "PASS", "FAIL")]),
        ([(1.0, PASS), (9.0009, FAIL)], (9.0, FAIL), [(1.0, "", "PASS"), (9.0, "PASS", "FAIL")]),
        # older than anything that is kept
        ([(5.0, PASS), (9.0, FAIL)], (1.0, UNKNOWN), [(5.0, "", "PASS"), (9.0, "PASS", "FAIL")]),
    ],
)
def test_a_reported_change_is_put_in_its_place_once(kept, reported, known):
    changes = VerdictHistory()
    for at, verdict in kept:
        changes.record(at, None, verdict)
    before = changes.entries
    assert changes.insert_reported(*reported) == (changes.entries != before)
    assert [(change.at, change.old, change.to) for change in changes.entries] == known
    assert not changes.insert_reported(*reported), "twice is once"
    assert [(change.at, change.old, change.to) for change in changes.entries] == known


def test_that_an_agent_was_starting_is_not_learnt():
    changes = VerdictHistory([VerdictChange(at=1.0, to="PASS")])
    assert not changes.insert_reported(2.0, UNKNOWN, "Starting", "reading")
    assert len(changes.entries) == 1
