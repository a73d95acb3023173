"""The log: one line for each taint, and one for each transition of a finding."""

import json
import logging
from typing import Any

import pytest

from muster_kube.nodehealth import (
    ClearEntry,
)
from muster_kube.process.logs import OneLineFormatter
from muster_tainter.faults.desired_state import decide
from muster_tainter.faults.logs.audit_log import log_taints, transitions
from muster_tainter.policy.file import load_policy

NOW = 1_800_000_000.0
POLICY = load_policy(None)


def test_each_transition_of_a_finding_is_one_line(make: Any) -> None:
    nothing, one = make.health(), make.health(make.finding())
    [check, came] = sorted(transitions(nothing, one), key=lambda line: line["event"])
    assert (came["event"], came["from"], came["to"], came["reason"]) == ("finding", None, "FAIL", "Xid79")
    assert (check["from"], check["to"]) == ("PASS", "FAIL")
    again = list(transitions(one, make.health(make.finding(occurrence=2))))
    assert [(c["from"], c["to"], c["occurrence"]) for c in again] == [("FAIL", "FAIL", 2)]
    went = [c for c in transitions(one, make.health(boot="boot-2")) if c["event"] != "check"]
    assert [c["event"] for c in went] == ["boot", "finding"]
    assert went[1]["to"] is None
    json.dumps(went)


def test_counts_and_times_are_no_transition(make: Any) -> None:
    one = make.health(make.finding())
    other = make.health(make.finding(count=9, last_seen="2026-01-02T00:00:00Z"), observed="2026-01-02T00:00:00Z")
    assert list(transitions(one, other)) == []


def test_clears_are_transitions_too(make: Any) -> None:
    clear = ClearEntry(check="dmesg", component="*", occurrence=1, by="ada")
    events = list(transitions(make.health(), make.health(clear=(clear,), cleared=(make.cleared(),))))
    assert [e["event"] for e in events] == ["cleared", "clear"]


@pytest.mark.parametrize("as_json", [False, True])
def test_a_taint_is_one_line_with_node_taint_and_rule(make: Any, caplog: Any, as_json: bool) -> None:
    finding = make.finding(message="line\nNode n2 tainted: forged")
    with caplog.at_level(logging.INFO):
        log_taints("n1", decide(make.node(), make.health(finding), POLICY, NOW), dry_run=False)
    [record] = caplog.records
    line = OneLineFormatter(as_json=as_json).format(record)
    assert "\n" not in line
    if as_json:
        told = json.loads(line)
        assert (told["node"], told["taint"], told["rule"]) == ("n1", "muster.dev/faulty=true:NoSchedule", "hardware")
    else:
        assert "WARNING" in line
        for fact in ("n1", "muster.dev/faulty=true:NoSchedule", "hardware", "dmesg"):
            assert fact in line
