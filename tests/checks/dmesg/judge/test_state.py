"""A judge that goes on from a saved state says what it would have said without the break; nothing makes it raise."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster_checks.base.declaration import Sign
from muster_checks.dmesg.judge import JudgeState
from muster_checks.dmesg.open_findings import FINDINGS_LIMIT

POOL = [
    "NVRM: Xid (PCI:0000:b3:00): 13, pid=1",
    "NVRM: Xid (PCI:0000:b3:00): 48, pid=1",
    "NVRM: Xid (PCI:0000:b3:00): 162",
    "NVRM: Xid (PCI:0000:b3:00): 163",
    "NVRM: Xid (PCI:0000:b3:00): 154, from 0x0 (None) to 0x1 (GPU Reset Required)",
    "NVRM: Xid (PCI:0000:b3:00): 154, from 0x1 (GPU Reset Required) to 0x0 (None)",
    "NVRM: Xid (PCI:0000:b3:00): 74, NVLink: fatal error detected on link 1(0x10, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0)",
    "NVRM: GPU at PCI:0000:b3:00: GPU-1",
    "GPU reset executed: GPU-1, success: true",
    "GPU reset executed: GPU-1, success: false",
    "NVRM: The NVIDIA GPU 0000:b3:00.0",
    "NVRM: fallen off the bus and is not responding to commands.",
    "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 24007, Fatal, Link 28 sourcetrack timeout error (First)",
    "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 24007, Severity 1 Engine instance 28",
    "EDAC MC0: 4 CE memory read error on DIMM_A (channel:0)",
    "watchdog: BUG: soft lockup - CPU#0 stuck for 27s! [x:1]",
    " mlx5e_napi_poll+0x12/0x34 [mlx5_core]",
    "nfs: server a not responding, still trying",
    "nfs: server a OK",
    "Killed process 1 (x) total-vm:1kB, anon-rss:1kB, file-rss:1kB",
]
STEPS = st.lists(
    st.tuples(st.one_of(st.sampled_from(POOL), st.none()), st.sampled_from([0.0, 0.01, 0.7, 1.0, 4.0, 700.0, 3700.0])),
    max_size=40,
)


def _run(bench, steps, restart_at=()):
    events, at = [], 0.0
    for number, (text, wait_s) in enumerate(steps):
        if number in restart_at:
            assert bench.restart() == ""
        at += wait_s
        events.append(bench.tick(at) if text is None else bench.feed(text, at))
    if len(steps) in restart_at:
        assert bench.restart() == ""
    events.append(bench.tick(at + 2))
    return [sorted(map(repr, step)) for step in events]


@settings(deadline=None, max_examples=150)
@given(steps=STEPS, where=st.sets(st.integers(0, 40)))
def test_a_restart_at_any_point_changes_no_sign(new_bench, steps, where):
    assert _run(new_bench(), steps, restart_at=where) == _run(new_bench(), steps)


@settings(deadline=None, max_examples=100)
@given(steps=STEPS)
def test_a_state_is_not_changed_by_what_the_judge_does_next(new_bench, steps):
    bench = new_bench()
    _run(bench, steps)
    state = bench.judge.state()
    before = msgspec.json.encode(state)
    _run(bench, [(text, 10_000.0 + number) for number, text in enumerate(POOL * 3)])
    assert msgspec.json.encode(state) == before


WORDS = st.one_of(
    st.sampled_from([*POOL, "NVRM: Xid (PCI:", "SXid (", "): ", "74, ", "149, ", "0x", "\n", "link 1("]), st.text()
)


@settings(deadline=None, max_examples=300)
@given(pieces=st.lists(WORDS, max_size=6))
def test_no_text_makes_the_judge_raise_or_pass_unseen(new_bench, pieces):
    text = "".join(pieces)
    bench = new_bench()
    events = bench.feed(text)
    raw = text.encode("utf-8", "surrogatepass")
    assert bench.judge.interesting(raw) or not events
    for event in events:
        assert len(event.line) < 9000
        assert msgspec.json.encode(event)
        if isinstance(event, Sign):
            assert len(event.message.encode()) <= 256
            assert len(event.component) < 128
    assert bench.restart() == ""


@settings(deadline=None, max_examples=200)
@given(raw=st.binary(max_size=200))
def test_no_bytes_make_the_judge_raise_or_pass_unseen(new_bench, raw):
    bench = new_bench()
    xid = b"NVRM: Xid (PCI:0000:b3:00): 79"
    for text in (raw, xid + raw, raw + b" " + xid + b"\n", b"> " + xid):
        events = bench.feed(text.decode("utf-8", "replace"))
        assert bench.judge.interesting(text) or not events


PREFIXES = [
    "", "> ", "  ", "<4>", "<12>1 2025-11-20T12:00:01Z node-1 kernel - - - ", "kern  :err   : [   12.345678] ",
    "[ 1843.308145] ", "[ 1843.308145 <    0.000012>] ", "[   12.345678][  T123] ", "[  +0.000012] ", "[Nov20 12:00] ",
    "[Thu Nov 20 12:00:01 2025] ", "2025-11-20T12:00:01,123456+00:00 ",
    "2025-11-20T12:00:01.123456+00:00 node-1 kernel: ",
    "Nov 20 12:00:01 node-1 kernel: ", "Nov 20 12:00:01 node-1 kernel[0]: [ 12.345678] ",
    "1763640001.123456 node-1 kernel: ", "kernel: ", "kern.err kernel: ", "[pod/syslog-x/kernel] ", "MESSAGE=",
]  # fmt: skip


@pytest.mark.parametrize("prefix", PREFIXES)
def test_a_line_with_the_prefix_of_a_printed_log_is_interesting_and_is_judged(prefix, bench):
    text = f"{prefix}NVRM: Xid (PCI:0000:b3:00): 79, pid=1"
    assert bench.judge.interesting(text.encode())
    assert [event.reason for event in bench.feed(text)] == ["Xid79"]


GARBAGE = [
    None,
    {},
    [],
    b"\x00",
    "1",
    {"version": 99},
    {"version": 1},
    {"version": 1, "open": 3, "windows": [], "gpus": {}, "contexts": {}, "seen": {}},
    {"version": 1, "open": [{"component": 1}], "windows": [], "gpus": {}, "contexts": {}, "seen": {}},
    {"version": 1, "open": [], "windows": [["a", "b", ["x"]]], "gpus": {}, "contexts": {}, "seen": {}},
    pytest.param(object(), id="what is no text"),
]


@pytest.mark.parametrize("garbage", GARBAGE, ids=repr)
def test_a_garbled_state_is_named_and_the_judge_is_as_new(garbage, bench):
    bench.feed(POOL[1])
    assert "state" in bench.judge.restore(garbage)
    assert bench.judge.state().open == []
    assert len(bench.feed(POOL[1], 0.1)) == 1


@settings(deadline=None, max_examples=100)
@given(
    garbage=st.recursive(
        st.one_of(st.none(), st.integers(), st.floats(), st.text()),
        lambda inner: st.one_of(st.lists(inner), st.dictionaries(st.sampled_from(["version", "open", "gpus"]), inner)),
    )
)
def test_no_garbage_makes_restore_raise(new_bench, garbage):
    assert new_bench().judge.restore(garbage) != ""


def test_a_state_goes_through_json_and_through_msgpack(bench):
    for number, text in enumerate(POOL):
        bench.feed(text, number / 10)
    state = bench.judge.state()
    assert msgspec.json.decode(msgspec.json.encode(state), type=JudgeState) == state
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(state), type=JudgeState) == state
    assert bench.judge.restore(state) == ""
    assert bench.judge.state() == state


def test_the_state_is_bounded_whatever_is_written(new_bench):
    bench = new_bench()
    for number in range(20_000):
        bench.feed(f"nfs: server s{number} not responding" + "x" * 500, number / 1000)
    assert len(bench.judge.state().open) == FINDINGS_LIMIT
    assert len(msgspec.json.encode(bench.judge.state())) < 1_000_000
