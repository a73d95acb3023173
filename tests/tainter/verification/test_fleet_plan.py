"""The plan of heavy checks: who is asked, who is not, and who comes first."""

from typing import Any

import msgspec
import pytest

from muster_kube.api.objects import Metadata, Node, NodeSpec, Taint
from muster_kube.api.times import rfc3339_whole, seconds
from muster_kube.nodehealth import (
    AgentIdentity,
    CheckRequest,
    NodeHealth,
    NodeHealthSpec,
    NodeHealthStatus,
    ReportedFinding,
    RequestAnswer,
)
from muster_tainter.faults.record.check_history import (
    ANNOTATION,
    MANAGER,
    CheckHistory,
    CheckRecord,
    check_under_test,
    encode_history,
    note_answer,
    pending_request,
    read_history,
)
from muster_tainter.policy.file import parse_policy
from muster_tainter.verification.fleet_plan import (
    SLICE,
    FleetPlan,
    NodeTestState,
    node_test_state,
    plan_by_slices,
    plan_fleet,
    request_for,
    suspicions_of,
)
from muster_tainter.verification.fleet_plan_executor import time_limit_s

NOW = 1_767_312_000.0  # 2026-01-02T00:00:00Z
HOUR = 3600.0
DAY = 86_400.0
STARTUP = Taint(key="muster.dev/startup", effect="NoSchedule")


def policy(testing: str = "{}") -> Any:
    """testing: that section, and maybe others behind it."""
    return parse_policy(f"{{rules: [], testing: {testing}}}")


def at(hours_ago: float) -> str:
    return rfc3339_whole(NOW - hours_ago * HOUR)


def node(name: str = "n1", *taints: Taint, deleting: bool = False, **labels: str) -> Node:
    metadata = Metadata(name=name, labels={k.replace("_", "/", 1): v for k, v in labels.items()},
                        deletion_timestamp=at(0) if deleting else "")  # fmt: skip
    return Node(metadata=metadata, spec=NodeSpec(taints=taints))


def health(
    name: str = "n1",
    *due: str,
    idle: str | None = None,
    past: CheckHistory | None = None,
    requests: tuple[CheckRequest, ...] = (),
    answers: tuple[RequestAnswer, ...] = (),
    agent: str = "pod",
    came: float = 24.0,
    verdict: str = "PASS",
    boot: str = "b1",
) -> NodeHealth:
    """Idle since an hour ago, unless ``idle`` says otherwise (empty: busy)."""
    return NodeHealth(
        metadata=Metadata(
            name=name,
            creation_timestamp=at(came),
            annotations={ANNOTATION: encode_history(past)} if past is not None else {},
        ),
        spec=NodeHealthSpec(requests=requests),
        status=NodeHealthStatus(
            verdict=verdict, boot_id=boot, agent=AgentIdentity(pod_uid=agent),
            idle_since=at(1) if idle is None else idle,
            due=due, answers=answers,
        ),
    )  # fmt: skip


def ours(check: str = "pciebw", now: float = NOW) -> CheckRequest:
    return request_for(check, "u1", now)


def answer(request: CheckRequest, verdict: str = "PASS", reason: str = "") -> RequestAnswer:
    return RequestAnswer(id=request.id, verdict=verdict, reason=reason, runs=1, finished=at(0))


def last(hours_ago: float, check: str = "pciebw", **more: Any) -> CheckHistory:
    return CheckHistory(checks={check: CheckRecord(at=at(hours_ago), **more)})


def fleet(*healths: NodeHealth, nodes: dict[str, Node] | None = None, rules: Any = None) -> list[NodeTestState]:
    known = nodes or {}
    return [node_test_state(known.get(h.metadata.name, node(h.metadata.name)), h, rules or policy()) for h in healths]


def planned(*healths: NodeHealth, text: str = "{atOnce: 1}", now: float = NOW, **nodes: Node) -> FleetPlan:
    rules = policy(text)
    return plan_fleet(fleet(*healths, nodes=nodes, rules=rules), rules, now)


def asks(made: FleetPlan) -> list[tuple[str, str]]:
    return [(step.node, step.check) for step in made.steps if step.check]


class TestWhoIsAsked:
    """And who is left out."""

    def test_an_idle_node_is_asked_for_what_is_due(self) -> None:
        made = planned(health("n1", "gpumem"))
        assert asks(made) == [("n1", "gpumem")]
        assert (made.running, made.waiting) == ({"gpumem": 1}, {})

    @pytest.mark.parametrize(("one", "other"), [
        ({"idle": ""}, None),
        ({"agent": ""}, None),
        ({"verdict": ""}, None),
        ({}, node("n1", muster_dev="x", **{"muster.dev_faulty": "true"})),
        ({}, node("n1", **{"muster.dev_managed": "false"})),
        ({}, node("n1", deleting=True)),
        ({}, node("n1", Taint(key="node.kubernetes.io/unreachable", effect="NoExecute"))),
        ({}, node("n1", Taint(key="node.kubernetes.io/not-ready", effect="NoSchedule"))),
    ])  # fmt: skip
    def test_a_node_that_is_busy_in_trouble_or_silent_is_not(self, one: dict[str, Any], other: Node | None) -> None:
        made = planned(health("n1", "pciebw", **one), **({"n1": other} if other else {}))
        assert made.steps == ()

    def test_a_busy_node_waits_and_counts_as_waiting(self) -> None:
        made = planned(health("n1", "pciebw", "gpumem", idle=""))
        assert (made.waiting, made.beyond) == ({"pciebw": 1, "gpumem": 1}, 0)

    def test_a_node_that_is_gone_is_not_asked(self) -> None:
        assert plan_fleet([node_test_state(None, health("n1", "pciebw"), policy())], policy(), NOW).steps == ()

    def test_a_check_whose_name_is_none_is_not_asked_for(self) -> None:
        assert planned(health("n1", "PCIe BW", "x" * 64)).steps == ()

    def test_one_check_at_a_time_on_a_node(self) -> None:
        request = ours("gpumem")
        made = planned(health("n1", "pciebw", "gpumem", requests=(request,)), text="{atOnce: 5}")
        assert (made.steps, made.running) == ((), {"gpumem": 1})

    def test_nothing_is_asked_beside_a_request_of_somebody_else(self) -> None:
        theirs = CheckRequest(id="ann-1", checks=("dcgm",), by="ann")
        assert planned(health("n1", "pciebw", requests=(theirs,))).steps == ()
        done = health("n1", "pciebw", requests=(theirs,), answers=(answer(theirs),))
        assert asks(planned(done)) == [("n1", "pciebw")]

    def test_a_request_of_somebody_else_that_was_never_begun_holds_nothing_up_for_ever(self) -> None:
        theirs = CheckRequest(id="ann-1", checks=("dcgm",), by="ann", expires=rfc3339_whole(NOW + 60))
        waiting = health("n1", "pciebw", requests=(theirs,))
        made = planned(waiting)
        assert (made.steps, made.look_again_at) == ((), NOW + 60)
        assert asks(planned(waiting, now=NOW + 61)) == [("n1", "pciebw")]
        begun = health("n1", "pciebw", requests=(theirs,), answers=(RequestAnswer(id="ann-1", verdict="UNKNOWN"),))
        assert planned(begun, now=NOW + 61).steps == ()

    def test_an_id_like_ours_from_somebody_else_is_not_ours(self) -> None:
        theirs = CheckRequest(id="plan-pciebw-u1", checks=("pciebw",), by="ann")
        assert pending_request(health("n1", requests=(theirs,))) is None


class TestSuspicions:
    """Checks that findings of external sources ask for."""

    TEXT = "{}, sources: {stepTimes: {url: 'http://p', heavyChecks: [gpumem, pciebw]}}"

    def plan(self, one: NodeHealth, suspicions: dict[str, float], *others: NodeHealth) -> FleetPlan:
        rules = policy("{atOnce: 1}")
        states = [node_test_state(node(one.metadata.name), one, rules, suspicions)]
        return plan_fleet([*states, *fleet(*others, rules=rules)], rules, NOW)

    def test_a_finding_asks_for_the_checks_of_its_source(self) -> None:
        finding = ReportedFinding(component="host", reason="SlowRank", verdict="WARN", first_seen=at(0))
        findings = {("stragglers", "host", "SlowRank"): finding, ("prometheus", "host", "Hot"): finding}
        assert suspicions_of(findings, policy(self.TEXT)) == {"gpumem": NOW, "pciebw": NOW}
        assert suspicions_of(findings, policy()) == {}

    def test_an_idle_node_is_asked_and_a_busy_one_waits(self) -> None:
        assert asks(self.plan(health("n1"), {"gpumem": NOW})) == [("n1", "gpumem")]
        busy = self.plan(health("n1", idle=""), {"gpumem": NOW})
        assert (busy.steps, busy.waiting, busy.beyond) == ((), {"gpumem": 1}, 0)

    def test_a_check_that_has_measured_since_is_done_and_an_earlier_one_is_not(self) -> None:
        since = NOW - 2 * HOUR
        assert asks(self.plan(health("n1", past=last(1, "gpumem")), {"gpumem": since})) == []
        assert asks(self.plan(health("n1", past=last(3, "gpumem")), {"gpumem": since})) == [("n1", "gpumem")]

    def test_it_comes_before_what_is_due_and_after_what_is_overdue(self) -> None:
        due = health("n2", "pciebw", past=last(100))
        overdue = health("n3", "pciebw", past=last(8 * 24))
        assert asks(self.plan(health("n1"), {"gpumem": NOW}, due)) == [("n1", "gpumem")]
        assert asks(self.plan(health("n1"), {"gpumem": NOW}, due, overdue)) == [("n3", "pciebw")]

    def test_a_check_that_the_agent_does_not_have_is_never_overdue(self) -> None:
        old = health("n1", came=100 * 24)
        assert self.plan(old, {"gpumem": NOW}).beyond == 0


class TestWhoComesFirst:
    """Turns."""

    def test_who_has_waited_longest(self) -> None:
        three = [health(f"n{n}", "pciebw", past=last(hours)) for n, hours in ((1, 3), (2, 9), (3, 5))]
        assert asks(planned(*three, text="{atOnce: 2}")) == [("n2", "pciebw"), ("n3", "pciebw")]

    def test_a_node_that_was_never_tested_has_waited_since_it_came(self) -> None:
        new, old = health("new", "pciebw", came=2), health("old", "pciebw", past=last(1), came=900)
        older = health("older", "pciebw", past=last(3), came=900)
        assert asks(planned(old, new, older, text="{atOnce: 2}")) == [("older", "pciebw"), ("new", "pciebw")]

    def test_of_one_node_the_check_that_waits_longest(self) -> None:
        past = CheckHistory(checks={"pciebw": CheckRecord(at=at(2)), "gpumem": CheckRecord(at=at(5))})
        assert asks(planned(health("n1", "pciebw", "gpumem", past=past))) == [("n1", "gpumem")]

    def test_a_broken_promise_comes_before_a_job_s_end(self) -> None:
        text = "{atOnce: 1, coverage: 2d}, pools: [{name: a, selector: {}, testing: {postFlight: pciebw}}]"
        ended = health("ended", idle=at(0), past=last(30, idle=at(40)))
        late = health("late", "pciebw", past=last(49, idle=at(1)))
        waiting = health("waiting", "pciebw", past=last(40, idle=at(1)))
        made = planned(waiting, ended, late, text=text)
        assert (asks(made), made.beyond, made.short) == ([("late", "pciebw")], 1, 0)
        assert asks(planned(waiting, ended, text=text)) == [("ended", "pciebw")]

    def test_a_promise_that_the_cap_cannot_keep_is_told(self) -> None:
        late = [health(f"n{n}", "pciebw", past=last(200 + n)) for n in range(4)]
        busy = health("busy", "pciebw", past=last(200), idle="")
        made = planned(*late, busy, text="{atOnce: 1}")
        assert (asks(made), made.beyond, made.short) == ([("n3", "pciebw")], 5, 3)

    def test_the_longest_wait_is_known_by_check(self) -> None:
        past = CheckHistory(checks={"pciebw": CheckRecord(at=at(2)), "gpumem": CheckRecord(at=at(5))})
        made = planned(health("n1", "pciebw", "gpumem", past=past), health("n2", "pciebw", past=last(7)))
        assert made.oldest == {"pciebw": NOW - 7 * HOUR, "gpumem": NOW - 5 * HOUR}


class TestCap:
    """How many at once."""

    @pytest.mark.parametrize(("nodes", "text", "most"), [
        (8, "{atOnce: 2}", 2), (8, "{atOnce: 0}", 0), (3, "{atOnce: 10}", 3),
        (8, "{}", 1), (21, "{}", 2), (100, "{atOnce: '5%'}", 5), (8, "{atOnce: '0%'}", 0), (8, "{atOnce: '100%'}", 8),
    ])  # fmt: skip
    def test_a_number_or_a_share_that_is_rounded_up(self, nodes: int, text: str, most: int) -> None:
        assert len(asks(planned(*(health(f"n{n}", "pciebw") for n in range(nodes)), text=text))) == most

    def test_who_runs_takes_a_place_until_its_answer_is_noted(self) -> None:
        request = ours()
        begun = RequestAnswer(id=request.id, verdict="UNKNOWN")
        for answers in ((), (begun,)):
            running = health("n1", requests=(request,), answers=answers)
            assert asks(planned(running, health("n2", "pciebw"))) == []
        done = health("n1", requests=(request,), answers=(answer(request),))
        made = planned(done, health("n2", "pciebw"))
        assert [(s.node, s.check, s.end) for s in made.steps] == [("n1", "", request), ("n2", "pciebw", None)]

    def test_a_node_in_trouble_keeps_the_place_it_has(self) -> None:
        running = health("n1", requests=(ours(),))
        faulty = node("n1", **{"muster.dev_faulty": "true"})
        assert planned(running, health("n2", "pciebw"), n1=faulty).steps == ()

    def test_a_node_that_people_take_over_is_asked_no_longer(self) -> None:
        running = health("n1", requests=(ours(),))
        made = planned(running, health("n2", "pciebw"), n1=node("n1", **{"muster.dev_managed": "false"}))
        assert [(s.node, s.end, s.noted) for s in made.steps] == [("n1", ours(), False)]  # and n2 a moment later

    def test_a_pool_has_a_cap_of_its_own_within_the_fleet_s(self) -> None:
        text = "{atOnce: 3}, pools: [{name: a, selector: {matchLabels: {zone: a}}, testing: {atOnce: '25%'}}]"
        healths = [health(f"{zone}{n}", "pciebw", past=last(20 if zone == "a" else 10)) for zone in "ab"
                   for n in range(4)]  # fmt: skip
        nodes = {h.metadata.name: node(h.metadata.name, zone=h.metadata.name[0]) for h in healths}
        assert [name for name, _ in asks(planned(*healths, text=text, **nodes))] == ["a0", "b0", "b1"]

    def test_a_node_belongs_to_the_first_pool_that_chooses_it(self) -> None:
        rules = policy("{}, pools: [{name: a, selector: {matchLabels: {gpu: h100}}}, {name: rest, selector: {}}]")
        pools = [node_test_state(node("n", gpu=gpu), health("n"), rules).pool for gpu in ("h100", "a100")]
        assert pools == ["a", "rest"]


class TestAnswers:
    """What comes of a request."""

    def noted(self, verdict: str, reason: str = "", past: CheckHistory | None = None, **more: Any) -> NodeHealth:
        request = ours()
        before = health("n1", "pciebw", past=past, requests=(request,), **more)
        got = answer(request, verdict, reason) if verdict else None
        new = note_answer(read_history(before), before, request, got, pause_s=600.0, now=NOW, new=False)
        return health("n1", "pciebw", past=new, **more)

    @pytest.mark.parametrize("verdict", ["PASS", "WARN", "FAIL", "SKIP"])
    def test_what_measured_something_is_remembered_with_its_time(self, verdict: str) -> None:
        after = self.noted(verdict, past=last(90, failures=3, after=at(2)))
        assert read_history(after).checks == {"pciebw": CheckRecord(at=at(0), idle=at(1))}

    def test_what_measured_nothing_is_asked_again_later_each_time(self) -> None:
        once = self.noted("UNKNOWN", "ToolMissing")
        assert (planned(once).steps, planned(once).look_again_at) == ((), NOW + 60)
        assert asks(planned(once, now=NOW + 600)) == [("n1", "pciebw")]
        twice = self.noted("UNKNOWN", "ToolMissing", past=read_history(once))
        assert asks(planned(twice, now=NOW + 1199)) == []
        assert asks(planned(twice, now=NOW + 1200)) == [("n1", "pciebw")]
        many = self.noted("UNKNOWN", past=last(1, failures=500))
        assert asks(planned(many, now=NOW + DAY)) == [("n1", "pciebw")]

    def test_another_check_of_that_node_need_not_wait(self) -> None:
        once = self.noted("UNKNOWN", "ToolMissing")
        both = msgspec.structs.replace(once, status=msgspec.structs.replace(once.status, due=("pciebw", "gpumem")))
        assert asks(planned(both)) == [("n1", "gpumem")]

    def test_a_node_that_said_busy_is_asked_again_when_it_is_idle_anew_or_after_a_pause(self) -> None:
        refused = self.noted("UNKNOWN", "Busy")
        assert asks(planned(refused)) == []
        assert asks(planned(refused, now=NOW + 600)) == [("n1", "pciebw")]
        anew = msgspec.structs.replace(refused, status=msgspec.structs.replace(refused.status, idle_since=at(0)))
        assert asks(planned(anew)) == [("n1", "pciebw")]

    def test_a_node_that_said_busy_while_it_was_is_asked_as_soon_as_it_is_idle(self) -> None:
        refused = self.noted("UNKNOWN", "Busy", idle="")
        assert asks(planned(refused)) == []
        idle = msgspec.structs.replace(refused, status=msgspec.structs.replace(refused.status, idle_since=at(0)))
        assert asks(planned(idle)) == [("n1", "pciebw")]

    def test_silence_frees_the_place_after_the_check_s_own_limit(self) -> None:
        silent, other = health("n1", "pciebw", requests=(ours(),)), health("n2", "pciebw")
        rules = policy("{atOnce: 1}")
        for late, steps in ((0.0, []), (1530.0, []), (1531.0, ["n1"])):
            made = plan_fleet(fleet(silent, other), rules, NOW + late, limit_s=lambda _: 1500.0)
            assert [step.node for step in made.steps] == steps
        # once that is written: a leader that dies in between leaves no place taken twice
        written = plan_fleet(fleet(health("n1"), other), rules, NOW + 1532.0, limit_s=lambda _: 1500.0)
        assert [step.node for step in written.steps] == ["n2"]

    def test_a_node_that_never_answers_waits_longer_each_time_whatever_it_says(self) -> None:
        once = self.noted("")
        twice = self.noted("", past=read_history(once), idle=at(0.5))
        assert (read_history(twice).silent, seconds(read_history(twice).after)) == (2, NOW + 1200)
        assert read_history(self.noted("PASS", past=read_history(twice))).silent == 0

    def test_a_second_request_of_ours_is_called_off(self) -> None:
        two = (ours("pciebw"), replace_id(ours("gpumem"), "plan-gpumem-2"))
        made = planned(health("n1", requests=two), health("n2", "pciebw"))
        assert [(s.node, s.noted) for s in made.steps] == [("n1", False)]

    @pytest.mark.parametrize("text", ["{", "[]", '{"checks": 3}', '{"checks": {"pciebw": {"at": 7}}}', "\udcff"])
    def test_a_memory_that_makes_no_sense_is_none(self, text: str) -> None:
        broken = NodeHealth(metadata=Metadata(name="n1", annotations={ANNOTATION: text}))
        assert read_history(broken) == CheckHistory()

    def test_the_memory_is_bounded(self) -> None:
        past = CheckHistory()
        for number in range(100):
            request = request_for(f"check{number}", "u", NOW)
            past = note_answer(past, health("n1"), request, answer(request), pause_s=1.0, now=NOW + number, new=False)
        assert len(past.checks) == 32
        assert "check99" in past.checks


def replace_id(request: CheckRequest, name: str) -> CheckRequest:
    return msgspec.structs.replace(request, id=name)


class TestFlights:
    """Before the first job, and after each one."""

    TEXT = "{atOnce: 1}, pools: [{name: a, selector: {}, testing: {postFlight: [pciebw], preFlight: [pciebw, dcgm]}}]"

    def test_a_job_s_end_asks_for_the_pool_s_checks_due_or_not(self) -> None:
        waiting = health("waiting", "pciebw", past=last(20, idle=at(1)))
        ended = health("ended", idle=at(0), past=last(2, idle=at(5)))
        assert asks(planned(waiting, ended, text=self.TEXT)) == [("ended", "pciebw")]

    def test_once_for_each_time_that_it_is_idle(self) -> None:
        assert planned(health("n1", past=last(0, idle=at(1))), text=self.TEXT).steps == ()
        assert planned(health("n1", past=last(0, idle=at(1)), idle=""), text=self.TEXT).steps == ()

    def test_only_pools_that_name_checks(self) -> None:
        assert planned(health("n1", past=last(2, idle=at(5))), text="{atOnce: 1}").steps == ()

    def test_a_new_node_comes_before_all(self) -> None:
        late = health("late", "pciebw", past=last(24 * 30, idle=at(1)))
        made = planned(late, health("new"), text=self.TEXT, new=node("new", STARTUP))
        assert asks(made) == [("new", "pciebw")]

    def test_only_what_it_has_not_passed_in_this_boot(self) -> None:
        request = ours()
        past = note_answer(CheckHistory(), health("n1"), request, answer(request), pause_s=1.0, now=NOW, new=True)
        assert past.passed == ("pciebw",)
        assert asks(planned(health("n1", past=past), text=self.TEXT, n1=node("n1", STARTUP))) == [("n1", "dcgm")]
        again = health("n1", past=past, boot="b2")
        assert asks(planned(again, text=self.TEXT, n1=node("n1", STARTUP))) == [("n1", "dcgm")]
        anew = node_test_state(node("n1", STARTUP), again, policy(self.TEXT))
        assert {want.check for want in anew.wants if want.turn == 0} == {"pciebw", "dcgm"}

    @pytest.mark.parametrize("verdict", ["WARN", "FAIL", "SKIP", "UNKNOWN"])
    def test_only_a_pass_counts(self, verdict: str) -> None:
        request = ours()
        past = note_answer(
            CheckHistory(), health("n1"), request, answer(request, verdict), pause_s=600.0, now=NOW, new=True
        )
        assert past.passed == ()
        assert planned(health("n1", past=past, idle=at(0)), text=self.TEXT.replace("pciebw, dcgm", "pciebw"),
                       n1=node("n1", STARTUP)).steps == ()  # fmt: skip


def test_the_label_says_what_the_node_runs_until_it_has_answered() -> None:
    request = ours("gpumem")
    assert check_under_test(health("n1", requests=(request,))) == "gpumem"
    assert check_under_test(health("n1", requests=(request,), answers=(answer(request),))) is None
    assert check_under_test(health("n1", requests=(CheckRequest(id="x", checks=("dcgm",)),))) is None


def test_a_request_names_us_and_ends_soon() -> None:
    request = request_for("pciebw", "abc", NOW)
    assert (request.id, request.by, request.checks) == ("plan-pciebw-abc", MANAGER, ("pciebw",))
    assert seconds(request.expires) == NOW + 30


@pytest.mark.parametrize(("check", "limit"), [("pciebw", 1500.0), ("somebodyelses", 3600.0)])
def test_the_limit_of_a_run_is_its_declaration_s(check: str, limit: float) -> None:
    assert time_limit_s(check) == limit


def test_a_large_fleet_s_plan_lets_others_have_their_turn_and_is_the_same() -> None:
    standings = fleet(*(health(f"n{number}", "pciebw", came=number + 1) for number in range(3 * SLICE)))
    rules = policy("{atOnce: 4}")
    planning = plan_by_slices(standings, rules, NOW, time_limit_s)
    for _ in range(3):
        next(planning)
    with pytest.raises(StopIteration) as end:
        next(planning)
    assert end.value.value == plan_fleet(standings, rules, NOW, time_limit_s)


def test_what_a_leader_wrote_whose_clock_ran_ahead_blocks_nobody_for_ever() -> None:
    a_year_ahead = NOW + 365 * DAY
    request = ours(now=a_year_ahead)
    made = planned(health("n1", "pciebw", requests=(request,)), health("n2", "pciebw"))
    assert [step.end for step in made.steps if step.node == "n1"] == [request]
    assert asks(made) == []  # its place is free when that is written
    assert asks(planned(health("n1"), health("n2", "pciebw"))) == [("n2", "pciebw")]
    for past in (
        last(1.0, after=rfc3339_whole(a_year_ahead)),
        CheckHistory(after=rfc3339_whole(a_year_ahead)),
    ):
        assert asks(planned(health("n1", "pciebw", past=past))) == [("n1", "pciebw")]
