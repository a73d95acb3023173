"""What a policy would have done: simulated time, real decisions."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import msgspec
import pytest

from muster_kube.api.objects import Metadata, Node
from muster_kube.nodehealth import NodeHealth
from muster_tainter.explain.audit_log_reader import AuditLogReader
from muster_tainter.explain.replay import PolicyReplay, ReplayOutcome
from muster_tainter.faults.logs.audit_log import transitions

T0 = 1_767_225_600.0  # 2026-01-01T00:00:00Z
RULES = "rules: [{name: hw, match: {}, action: taint, holdDown: 0s%s}]\n"


def of(name: str, health: NodeHealth) -> NodeHealth:
    return msgspec.structs.replace(health, metadata=Metadata(name=name))


def spells(outcome: ReplayOutcome) -> list[tuple[str, float, float]]:
    return [(spell.node, spell.since - T0, spell.until - T0) for spell in outcome.spells]


@pytest.fixture
def replay(policy_of: Callable[[str], Any]) -> Callable[..., PolicyReplay]:
    def made(more: str = "", pools: str = "", nodes: int = 0) -> PolicyReplay:
        fleet = [Node(metadata=Metadata(name=f"n{number}")) for number in range(nodes)]
        return PolicyReplay(policy_of(RULES % more + pools), fleet)

    return made


def test_a_fault_that_passes_before_its_time_taints_nobody(make: Any, replay: Any) -> None:
    short, long = replay(", for: 30s"), replay(", for: 30s")
    for each, gone in ((short, 20.0), (long, 40.0)):
        each.take(T0, of("n1", make.health(make.finding())))
        each.take(T0 + gone, of("n1", make.health(cleared=(make.cleared(),))))
    assert spells(short.finish(T0 + 100)) == []
    assert spells(long.finish(T0 + 100)) == [("n1", 30.0, 40.0)]  # tainted between two reports, at its own time


def test_what_comes_and_goes_is_held(make: Any, policy_of: Any) -> None:
    policy = policy_of("holdDown: {base: 10m}\n" + RULES.replace(", holdDown: 0s", "") % "")
    replay = PolicyReplay(policy)
    for number in (1, 2):
        at = T0 + number * 1000
        replay.take(at, of("n1", make.health(make.finding(occurrence=number))))
        replay.take(at + 60, of("n1", make.health(cleared=(make.cleared(occurrence=number),))))
    outcome = replay.finish(T0 + 10_000)
    (_, began, ended), (_, again, held) = spells(outcome)
    assert (began, ended, again) == (1000.0, 1060.0, 2000.0)
    assert 2060 + 300 < held < 2060 + 600  # one earlier end, a quarter of an hour before: nearly the whole base


def test_room_in_a_budget_goes_to_who_waits_and_time_gives_room_in_a_rate(make: Any, replay: Any) -> None:
    level = replay(pools="pools: [{name: all, selector: {}, budget: {tainted: 1}}]", nodes=3)
    rate = replay(pools="pools: [{name: all, selector: {}, budget: {rate: {nodes: 1, within: 10m}}}]", nodes=3)
    for each in (level, rate):
        for number in range(3):
            each.take(T0 + number, of(f"n{number}", make.health(make.finding())))
    level.take(T0 + 100, of("n0", make.health(cleared=(make.cleared(),))))
    assert spells(level.finish(T0 + 200)) == [("n0", 0.0, 100.0), ("n1", 100.0, 200.0)]
    assert [spell.node for spell in level.outcome.withheld_spells] == ["n1", "n2"]
    starts = [start for _, start, _ in spells(rate.finish(T0 + 2000))]
    assert starts[0] == 0.0
    assert starts == sorted(starts)
    assert all(600.0 <= later - earlier <= 602.0 for earlier, later in pairwise(starts))
    assert len(starts) == 3


def test_a_rule_for_faults_that_many_share_sees_the_others(make: Any, policy_of: Any) -> None:
    policy = policy_of(
        "rules:\n"
        "  - {name: switch, match: {correlated: 3}, action: event}\n"
        "  - {name: hw, match: {}, action: taint, for: 2m}\n"
    )
    replay = PolicyReplay(policy)
    for number in range(5):
        replay.take(T0 + number, of(f"n{number}", make.health(make.finding())))
    replay.take(T0 + 1000, of("n9", make.health(make.finding())))
    assert [spell.node for spell in replay.finish(T0 + 2000).spells] == ["n9"]


def test_node_hours_count_a_node_once_however_many_taints_it_has(make: Any, policy_of: Any) -> None:
    policy = policy_of(
        "rules:\n"
        "  - {name: a, match: {reason: Xid79}, action: taint}\n"
        "  - {name: b, match: {}, action: taint, taint: {key: example.com/b}}\n"
    )
    replay = PolicyReplay(policy)
    replay.take(T0, of("n1", make.health(make.finding(), make.finding("Xid95", 2))))
    outcome = replay.finish(T0 + 3600)
    assert (len(outcome.spells), outcome.tainted_s, len(outcome.tainted), outcome.at_once) == (2, 3600.0, 1, 1)


def test_what_the_journal_wrote_is_read_back_as_it_was(make: Any) -> None:
    told = [
        make.health(),
        make.health(make.finding()),
        make.health(make.finding(occurrence=2), make.finding("Xid31", 3, verdict="WARN")),
        make.health(make.finding("Xid31", 3, verdict="WARN"), cleared=(make.cleared(occurrence=2),)),
        make.health(boot="boot-2"),
    ]
    retelling = AuditLogReader()
    back: list[tuple[float, NodeHealth]] = []
    for number, (old, new) in enumerate(pairwise(told)):
        for change in transitions(old, new):
            back += retelling.take({"at": f"2026-01-01T00:0{number}:00Z", **change})
    back += retelling.finish()
    assert [at - T0 for at, _ in back] == [0.0, 60.0, 120.0, 180.0]
    for (_, read), was in zip(back, told[1:], strict=True):
        [check], [old_check] = read.status.checks, was.status.checks
        assert (check.verdict, sorted(check.findings, key=str), read.status.boot_id) == (
            old_check.verdict,
            sorted(old_check.findings, key=str),
            was.status.boot_id,
        )
    assert retelling.bad == 0
