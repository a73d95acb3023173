"""The annotation: what is written is what is read, and it stays small."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster_kube.api.times import rfc3339_whole
from muster_tainter.faults.record.node_record import (
    LOST_CHECK,
    LOST_REASON,
    OPEN_LIMIT,
    REST,
    SIZE_LIMIT,
    ClosedFault,
    Fault,
    NodeRecord,
    OurTaint,
    UnreadableRecord,
    decode_record,
    encode_record,
    fit_record,
    highest_closed,
    lost_taint,
    prune_closed,
    record_size,
)

NAMES = st.text("abcxyz019/:-", min_size=1, max_size=30)
FAULTS = st.builds(
    Fault,
    check=st.sampled_from(["dmesg", "pciebw", "ping"]),
    component=NAMES,
    reason=NAMES,
    occurrence=st.integers(1, 10**6),
    fault_class=st.sampled_from(["", "reboot", "replace"]),
    rule=st.just("hardware"),
    since=st.just("2026-01-01T00:00:00Z"),
    boot=st.just("3f0f9b1e-7a3c-4f65-9f0e-2b7f5a3f0000"),
    message=st.text(max_size=256),
)
CLOSED = st.builds(
    ClosedFault, check=NAMES, component=NAMES, reason=NAMES, occurrence=st.integers(1, 99), by=st.text(max_size=300)
)
MEMORIES = st.builds(
    NodeRecord,
    open=st.lists(FAULTS, max_size=90, unique_by=lambda f: f.key).map(tuple),
    closed=st.lists(CLOSED, max_size=20).map(tuple),
    ours=st.lists(st.builds(OurTaint, key=NAMES, effect=st.just("NoSchedule")), max_size=3).map(tuple),
)


@given(MEMORIES)
def test_what_is_fitted_is_small_reads_back_and_fits_as_it_is(memory: NodeRecord) -> None:
    fitted = fit_record(memory)
    assert record_size(fitted) <= SIZE_LIMIT
    assert decode_record(encode_record(fitted)) == fitted
    assert fit_record(fitted) == fitted


@given(MEMORIES)
def test_no_open_fault_is_forgotten_only_counted(memory: NodeRecord) -> None:
    fitted = fit_record(memory)
    assert sum(fault.rest or 1 for fault in fitted.open) == len(memory.open)
    for fault in memory.open:
        kept = [f for f in fitted.open if f.key == fault.key or (f.rest and f.check == fault.check)]
        assert any(f.occurrence >= fault.occurrence for f in kept)


def realistic(count: int) -> tuple[Fault, ...]:
    return tuple(
        Fault(
            check="dmesg", component=f"gpu/0000:{n:02x}:00.0", reason="Xid79", occurrence=n + 1, fault_class="reboot",
            rule="hardware", since="2026-01-01T00:00:00Z", first_seen="2026-01-01T00:00:00Z", origin="kernel",
            message="é" * 128,
        )
        for n in range(count)
    )  # fmt: skip


def test_evidence_goes_before_identities() -> None:
    faults = realistic(20)
    assert record_size(NodeRecord(open=faults)) > SIZE_LIMIT
    fitted = fit_record(NodeRecord(open=faults))
    assert [f.key for f in fitted.open] == [f.key for f in faults]
    assert any(f.message for f in fitted.open)


def test_forty_faults_of_usual_names_keep_their_identity() -> None:
    faults = realistic(OPEN_LIMIT)
    assert [f.key for f in fit_record(NodeRecord(open=faults)).open] == [f.key for f in faults]
    assert fit_record(NodeRecord(open=realistic(OPEN_LIMIT + 5))).open[-1].rest == 5


def test_thousands_of_checks_still_fit() -> None:
    faults = tuple(msgspec.structs.replace(f, check=f"{n}" * 20) for n, f in enumerate(realistic(200)))
    fitted = fit_record(NodeRecord(open=faults))
    assert record_size(fitted) <= SIZE_LIMIT
    assert sum(fault.rest or 1 for fault in fitted.open) == 200


def test_keys_of_a_newer_version_survive() -> None:
    text = '{"weights": {"dmesg": 3.5}, "tries": [1], "open": [], "futureKey": "x"}'
    memory = decode_record(text)
    assert decode_record(encode_record(memory)) == memory
    assert msgspec.json.decode(encode_record(memory) or "")["weights"] == {"dmesg": 3.5}


@pytest.mark.parametrize("text", ["{", "[]", '{"open": 1}', '{"x": {}', '{"open": [{"check": "", "component": "c"}]}'])
def test_what_nobody_wrote_is_unreadable(text: str) -> None:
    with pytest.raises(UnreadableRecord):
        decode_record(text)


def test_an_annotation_is_read_once_however_many_ask() -> None:
    """A burst of faults asks for the same text a dozen times a node."""
    text = encode_record(NodeRecord(closed=(ClosedFault(check="dmesg", component="c", reason="r", occurrence=3),)))
    assert text is not None
    assert decode_record(text) is decode_record("".join(list(text)))


def test_nothing_to_remember_is_no_annotation() -> None:
    assert encode_record(NodeRecord()) is None
    assert decode_record(None) == decode_record("") == NodeRecord()


def test_closed_faults_are_kept_for_a_day_and_eight_at_most() -> None:
    now = 1_800_000_000.0
    closed = [
        ClosedFault(check="c", component="x", reason=f"r{n}", occurrence=n + 1, closed_at=rfc3339_whole(now - 3600 * n))
        for n in range(30)
    ]
    kept = prune_closed(closed, now, frozenset())
    assert [c.reason for c in kept] == [f"r{n}" for n in range(8)]
    later = prune_closed(closed, now + 20 * 3600, frozenset({("c", "x", "r29")}))
    assert [c.reason for c in later] == ["r0", "r1", "r2", "r3", "r4", "r29"]


def test_of_one_fault_the_highest_closing_counts() -> None:
    at = rfc3339_whole(9e8)
    twice = [ClosedFault(check="c", component="x", reason="r", occurrence=n, closed_at=at) for n in (3, 7, 5)]
    assert [c.occurrence for c in prune_closed(twice, 9e8, frozenset())] == [7]


def test_a_new_nodehealth_is_told_the_highest_closed_number_of_each_check() -> None:
    def closed(check: str, occurrence: int, reason: str = "Xid79") -> ClosedFault:
        return ClosedFault(check=check, component="gpu/0", reason=reason, occurrence=occurrence, how="boot")

    memory = NodeRecord(
        closed=(closed("dmesg", 3), closed("dmesg", 7, "Xid48"), closed("pcielink", 2), closed("x", 9, REST))
    )
    told = {(entry.check, entry.component, entry.occurrence) for entry in highest_closed(memory)}
    assert told == {("dmesg", "gpu/0", 7), ("pcielink", "gpu/0", 2)}


@pytest.mark.parametrize(
    ("component", "value"),
    [
        ("x", ""),
        ("taint/muster.dev/faulty:NoShedule", ""),
        ("taint/muster.dev/faulty:NoSchedule", "two words"),
        ("taint/node.kubernetes.io/unreachable:NoExecute", ""),
        ("taint/muster.dev/startup:NoSchedule", ""),
    ],
)
def test_a_lost_fault_that_stands_for_no_taint_of_ours_is_unreadable(component: str, value: str) -> None:
    fault = Fault(check=LOST_CHECK, component=component, reason=LOST_REASON, occurrence=1, message=value)
    with pytest.raises(UnreadableRecord) as error:
        decode_record(encode_record(NodeRecord(open=(fault,))))
    assert lost_taint(fault).key in str(error.value)


@pytest.mark.parametrize("occurrence", [-1, 2**63])
def test_a_number_that_no_agent_gives_is_unreadable(occurrence: int) -> None:
    closed = ClosedFault(check="dmesg", component="gpu/1", reason="Xid79", occurrence=occurrence)
    with pytest.raises(UnreadableRecord, match="occurrence"):
        decode_record(encode_record(NodeRecord(closed=(closed,))))
