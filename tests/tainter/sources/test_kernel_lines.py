"""Kernel lines as collectors ship them, judged node by node as the agent judges its own."""

import json

import pytest

from muster_checks.base.declaration import AllClear, Sign
from muster_checks.base.vocabulary import Origin, Verdict
from muster_tainter.sources.loki.kernel_lines import STATE_LIMIT, Event, NodeJudges
from muster_tainter.sources.loki.log_formats import unwrap_line
from muster_tainter.sources.loki.response import LogEntry

NS = 1_000_000_000
NOW = 1_700_000_000.0
XID = "NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, name=python, GPU has fallen off the bus."
LOCKUP = "watchdog: BUG: soft lockup - CPU#3 stuck for 27s! [python:77]"


class Nodes:
    def __init__(self) -> None:
        self.now = NOW
        self.judges = NodeJudges(lambda: self.now)

    def say(self, node: str, line: str, at: float | None = None) -> list[Event]:
        self.now = max(self.now, at or 0.0)
        events: list[Event] = []
        entry = LogEntry(int((at or self.now) * NS), {}, line)
        one = self.judges.line(entry) if self.judges.matters(node, entry) else None
        if one is not None and not self.judges.repeats(node, one):
            events += self.judges.take(node, one) or []
        return events


@pytest.fixture
def nodes() -> Nodes:
    return Nodes()


@pytest.mark.parametrize(
    "line",
    [
        XID,
        f"[1235733.431527] {XID}",
        f"[    5.000001] {XID}",
        f"<4>[1235733.431527] {XID}",
        f"[Thu Nov 20 03:42:11 2025] {XID}",
        f"2025-11-20T03:42:11,123456+00:00 {XID}",
        f"Nov 20 03:42:11 gpu-7 kernel: [1235733.431527] {XID}",
        f"4,4004,9184121699,-;{XID}",
        f"2024-07-09T05:37:45.123456789Z stdout F [1235733.431527] {XID}",
        json.dumps({"log": f"[1235733.431527] {XID}\n", "stream": "stdout", "time": "2024-07-09T05:37:45.1Z"}),
        json.dumps({"MESSAGE": XID, "PRIORITY": "4", "_TRANSPORT": "kernel", "SYSLOG_IDENTIFIER": "kernel"}),
        json.dumps({"body": f"[1235733.431527] {XID}", "resources": {"k8s.node.name": "n1"}}),
        json.dumps({"body": f"2024-07-09T05:37:45.1Z stderr F {XID}"}),
        f"[1235733.431527] {XID}\r",
    ],
)
def test_the_same_line_is_seen_whatever_is_wrapped_around_it(nodes: Nodes, line: str) -> None:
    [sign] = nodes.say("n1", line)
    assert isinstance(sign, Sign)
    assert (sign.component, sign.reason, sign.verdict) == ("gpu/0000:3b:00.0", "Xid79", Verdict.FAIL)
    assert sign.at == NOW  # Loki's time, whatever the stamp says
    assert sign.origin is Origin.KERNEL


def test_a_journal_s_line_of_a_program_counts_as_one_of_user_space(nodes: Nodes) -> None:
    [sign] = nodes.say("n1", json.dumps({"MESSAGE": XID, "_TRANSPORT": "syslog"}))
    assert isinstance(sign, Sign)
    assert sign.origin is Origin.USER


def test_a_line_takes_over_nothing_from_another_node_s(nodes: Nodes) -> None:
    nodes.say("n1", f"<12>[7.5] {XID}")  # facility 1: user space
    [sign] = nodes.say("n2", XID)
    assert isinstance(sign, Sign)
    assert sign.origin is Origin.KERNEL
    assert sign.line == XID


@pytest.mark.parametrize("line", ["", "{", "{}", '{"log": 5}', '{"MESSAGE": [1, 2]}', "{" * 50_000, "\x00\ud800"])
def test_what_is_wrapped_oddly_is_left_as_it_is(nodes: Nodes, line: str) -> None:
    assert unwrap_line(line) == line
    assert nodes.say("n1", line) == []


def test_the_founding_page_s_test_line_warns(nodes: Nodes) -> None:
    line = "[1235733.431527] NVRM: Xid (0000:03:00): 14, Channel 00000001"
    [sign] = nodes.say("n1", f"2024-07-09T05:37:45.000000000Z stdout F {line}")
    assert isinstance(sign, Sign)
    assert (sign.reason, sign.verdict) == ("Xid14", Verdict.WARN)
    assert sign.line == line


def test_lines_are_counted_within_their_window_for_each_node_apart(nodes: Nodes) -> None:
    signs: dict[str, list[Event]] = {"n1": [], "n2": []}
    for i in range(5):
        for node, every_s in (("n1", 60), ("n2", 600)):
            signs[node] += nodes.say(node, f"[{i}.5] {LOCKUP}", NOW + i * every_s)
    reasons = {node: {sign.verdict for sign in told if isinstance(sign, Sign)} for node, told in signs.items()}
    assert Verdict.FAIL in reasons["n1"]
    assert Verdict.FAIL not in reasons["n2"]


def test_a_driver_s_word_clears_the_gpu_of_its_own_node_only(nodes: Nodes) -> None:
    uuid = "GPU-509665ad-0000-1111-2222-333344445555"
    for node in ("n1", "n2"):
        nodes.say(node, f"NVRM: GPU at PCI:0000:9b:00: {uuid}")
        nodes.say(node, "NVRM: Xid (PCI:0000:9b:00): 95, Uncontained ECC error")
    nodes.now += 10
    told = nodes.say("n2", f"GPU reset executed: {uuid}, success: true")
    assert any(isinstance(event, AllClear) and event.component == "gpu/0000:9b:00.0" for event in told)
    assert nodes.judges._states["n1"].open


def test_a_warning_is_over_by_quiet_as_far_as_was_read(nodes: Nodes) -> None:
    nodes.say("n1", "NVRM: Xid (PCI:0000:3b:00): 31, pid=1, name=x, Ch 00000001")
    nodes.say("n2", XID)
    assert nodes.judges.tick(NOW + 3599) == []
    nodes.now = NOW + 3601
    told = {node: events for node, events in nodes.judges.tick(NOW + 3601) if events}
    assert list(told) == ["n1"]
    assert isinstance(told["n1"][0], AllClear)


def test_a_shipper_that_starts_anew_and_sends_its_log_again_says_nothing_new(nodes: Nodes) -> None:
    assert nodes.say("n1", f"[1235733.431527] {XID}")
    nodes.now += 7200
    assert nodes.say("n1", f"[1235733.431527] {XID}") == []
    assert nodes.say("n2", f"[1235733.431527] {XID}")
    assert nodes.say("n1", f"[1242933.431527] {XID}")


def test_what_somebody_closed_is_judged_anew(nodes: Nodes) -> None:
    nodes.say("n1", f"[1.5] {XID}")
    nodes.judges.forget("n1", "gpu/0000:3b:00.0", "Xid79")
    assert nodes.say("n1", f"[1.9] {XID}", NOW + 0.4)  # else it would be held back for a second


def test_what_is_remembered_of_a_node_is_bounded(nodes: Nodes) -> None:
    for i in range(3 * STATE_LIMIT):
        nodes.say("n1", f"[{i}.0] NVRM: Xid (PCI:{i:04x}:3b:00): 79, GPU has fallen off the bus.", NOW + i)
    nodes.say("n2", XID)
    assert len(nodes.judges._states["n1"].open) == STATE_LIMIT
    nodes.judges.drop("n1")
    nodes.judges.drop("n2")
    assert nodes.judges.nodes == set()


@pytest.mark.parametrize(
    "lines",
    [
        [json.dumps({"MESSAGE": f"tmpfs: Unknown parameter 'x\n[1.5] {XID}\n'", "_TRANSPORT": "kernel"})],
        [f"[    5.000001] tmpfs: Unknown parameter 'x\n[    5.000001] {XID}\n'"],
        ["[    5.000001] tmpfs: Unknown parameter 'x", f"[    5.000001] {XID}"],
        [
            "2025-11-20T03:42:11.100001+00:00 n1 kernel: [    5.000001] tmpfs: Unknown parameter 'x",
            f"2025-11-20T03:42:11.100044+00:00 n1 kernel: [    5.000001] {XID}",
        ],
    ],
)
def test_a_line_break_in_a_users_text_makes_no_fault(nodes: Nodes, lines: list[str]) -> None:
    for line in lines:
        assert nodes.say("n1", line) == []
    assert nodes.say("n2", f"[    5.000001] {XID}")
    assert nodes.say("n1", f"[    5.000002] {XID}")


def test_a_node_without_trouble_is_not_remembered(nodes: Nodes) -> None:
    for i in range(100):
        nodes.say(f"n{i}", "[1.0] usb 1-1: new high-speed USB device number 2 using xhci_hcd")
    assert nodes.judges.nodes == set()


def test_lines_without_a_time_count_by_loki_s(nodes: Nodes) -> None:
    signs = [one for at in range(5) for one in nodes.say("n1", LOCKUP, NOW + at) if isinstance(one, Sign)]
    assert Verdict.FAIL in {sign.verdict for sign in signs}
