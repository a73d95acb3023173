"""What is asked of a node through its NodeHealth happens once, and is answered once, whatever dies in between."""

import asyncio
import random
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.agent.scripted_node import NOON, Limits, ScriptedNode, request, settle, until
from tests.loop_time import LoopTime

from muster_agent.checks.check_outcome import CheckOutcome
from muster_agent.checks.node_check import NodeCheck
from muster_agent.checks.request_runner import (
    LOOK_S,
    MARK_S,
    PATIENCE_S,
    REMEMBERED,
    REMEMBERED_S,
    STOPPING,
    TRIES,
)
from muster_agent.checks.state_file import StoredRequest
from muster_agent.idle.occupancy import RunScope
from muster_checks.base.declaration import Parameters
from muster_checks.base.vocabulary import Finding, Result, Verdict, worst
from muster_kube.api.times import rfc3339
from muster_kube.nodehealth import CheckRequest, RequestAnswer


@pytest.fixture
async def node() -> ScriptedNode:
    return ScriptedNode()


# --- once is once


async def test_a_request_is_carried_out_and_answered(node: ScriptedNode):
    answer = await node.answer(request("link"))
    assert answer == RequestAnswer(id="r1", verdict="PASS", runs=1, passes=1, finished=rfc3339(NOON))
    assert node.asked == [("link", Limits(depth=3), False)], "with the parameters of the configuration"


async def test_the_same_request_seen_again_is_not_run_again_also_when_it_was_edited(node: ScriptedNode):
    async with node.at_work(request("link")) as requests:
        await until(requests.answers)
        published = requests.answers()
        for again in (request("link"), request("heavy", runs="3")):
            requests.apply_requests([again], published)
            await settle()
        assert (node.ran, requests.answers()) == (["link"], published)


async def test_an_answer_is_kept_over_a_restart(node: ScriptedNode):
    async with node.at_work(request("link")) as requests:
        await until(requests.answers)
        published, kept = requests.answers(), requests.stored()
    async with node.at_work(request("link"), stored=kept) as requests:
        await settle()
        assert (node.ran, requests.answers()) == (["link"], published)


async def test_an_answer_that_was_published_but_not_saved_is_not_given_again(node: ScriptedNode):
    published = RequestAnswer(
        id="r1", verdict="FAIL", runs=3, passes=1, finished=rfc3339(NOON), reason="Slow", message="3 GB/s"
    )
    requests = node.requests([StoredRequest(id="r1", runs=2, passes=1, begun=1)])
    requests.apply_requests([request("link", runs="3")], [published])
    task = asyncio.create_task(requests.run())
    await settle()
    assert (node.ran, requests.answers()) == ([], (published,))
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@pytest.mark.parametrize(
    "odd",
    [
        RequestAnswer(id="r1", verdict="PASS"),
        RequestAnswer(id="r1", verdict="GREAT", finished=rfc3339(NOON)),
        RequestAnswer(id="r1", verdict="PASS", finished="soon"),
        RequestAnswer(id="else", verdict="PASS", finished=rfc3339(NOON)),
    ],
)
async def test_a_published_entry_that_is_no_answer_answers_nothing(node: ScriptedNode, odd: RequestAnswer):
    requests = node.requests()
    requests.apply_requests([request("link")], [odd])
    task = asyncio.create_task(requests.run())
    await until(requests.answers)
    assert node.ran == ["link"]
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_the_answer_to_a_withdrawn_request_is_withdrawn_and_given_again_when_it_was_a_blink(node: ScriptedNode):
    async with node.at_work(request("link")) as requests:
        await until(requests.answers)
        published = requests.answers()
        requests.apply_requests([])
        assert requests.answers() == ()
        node.clock.now += REMEMBERED_S - 1
        requests.apply_requests([request("link")])
        await settle()
        assert (requests.answers(), node.ran) == (published, ["link"])


async def test_an_id_that_was_gone_for_long_is_a_new_request(node: ScriptedNode):
    async with node.at_work(request("link")) as requests:
        await until(requests.answers)
        await settle()
        requests.apply_requests([])
        node.clock.now += REMEMBERED_S + 1
        requests.apply_requests([request("link")])
        await until(requests.answers)
        assert node.ran == ["link", "link"]


async def test_what_was_kept_is_known_however_late_the_nodehealth_is_seen(node: ScriptedNode):
    requests = node.requests([StoredRequest(id="r1", runs=1, passes=1, finished=NOON, verdict="PASS")])
    node.clock.now += REMEMBERED_S + 1
    requests.apply_requests([request("link")])
    assert [answer.id for answer in requests.answers()] == ["r1"]


async def test_what_is_remembered_of_withdrawn_requests_is_bounded(node: ScriptedNode):
    async with node.at_work() as requests:
        for n in range(REMEMBERED + 40):
            requests.apply_requests([request("link", name=f"r{n}")])
            await until(requests.answers)
            node.clock.now += 1
        assert len(requests.stored()) <= REMEMBERED + 2, "and the newest, and the one before it"
        assert "r103" in {state.id for state in requests.stored()}


# --- k of n


@pytest.mark.parametrize(
    ("params", "found", "expected"),
    [
        ({}, "P", ("PASS", 1, 1)),
        ({}, "F", ("FAIL", 1, 0)),
        ({"runs": "3"}, "PPP", ("PASS", 3, 3)),
        ({"runs": "3"}, "PF", ("FAIL", 2, 1)),
        ({"runs": "3", "passes": "1"}, "FUP", ("PASS", 3, 1)),
        ({"runs": "5", "passes": "2"}, "PFP", ("PASS", 3, 2)),
        ({"runs": "5", "passes": "3"}, "FUW", ("WARN", 3, 0)),
        ({"runs": "5", "passes": "3"}, "FPFS", ("SKIP", 4, 1)),
        ({"runs": "100", "passes": "1"}, "F" * 100, ("FAIL", 100, 0)),
    ],
)
async def test_k_of_n_ends_as_soon_as_it_is_decided(node: ScriptedNode, params, found, expected):
    letters = {verdict[0]: verdict for verdict in Verdict}
    node.finds["link"] = [letters[letter] for letter in found]
    answer = await node.answer(request("link", **params))
    assert (answer.verdict, answer.runs, answer.passes) == expected
    assert len(node.ran) == len(found)
    assert bool(answer.reason) == (answer.verdict != "PASS")


async def test_a_run_of_several_checks_passes_when_each_of_them_does(node: ScriptedNode):
    node.finds = {"heavy": [Verdict.PASS, Verdict.SKIP], "link": [Verdict.PASS, Verdict.PASS]}
    answer = await node.answer(request("link", "heavy", runs="2"))
    assert (answer.verdict, answer.runs, answer.passes) == ("SKIP", 2, 1), "beside a SKIP, a PASS proves nothing"
    assert answer.message.startswith("heavy: ")
    assert "SKIP" in answer.message
    assert node.ran == ["link", "heavy"] * 2


def found(check: str = "link", **verdicts: Verdict) -> Result:
    """A run that found the IPUs a, b … so."""
    findings = tuple(
        Finding(component=f"ipu/{each}", verdict=verdict, reason="R", message="m") for each, verdict in verdicts.items()
    )
    return Result(check=check, verdict=worst([each.verdict for each in findings]), findings=findings)


@pytest.mark.parametrize(
    ("results", "expected"),
    [
        ([found(a=Verdict.PASS, b=Verdict.FAIL)], ("PASS", "")),
        ([found(b=Verdict.PASS)], ("UNKNOWN", "NotSeen")),
        ([found(b=Verdict.FAIL)], ("UNKNOWN", "NotSeen")),
        ([found(a=Verdict.WARN, b=Verdict.PASS)], ("WARN", "R")),
        ([Result(check="link", verdict=Verdict.UNKNOWN, reason="ToolMissing")], ("UNKNOWN", "ToolMissing")),
        ([found(a=Verdict.PASS), found(b=Verdict.PASS)], ("UNKNOWN", "NotSeen")),
        ([found(a=Verdict.PASS), found(a=Verdict.PASS), found(a=Verdict.PASS)], ("PASS", "")),
    ],
)
async def test_64_a_named_component_has_to_be_seen_and_well_whatever_else_is_not(node: ScriptedNode, results, expected):
    node.finds["link"] = list(results)
    answer = await node.answer(request("link", runs=str(len(results)), sees="ipu/a"))
    assert (answer.verdict, answer.reason) == expected


async def test_the_answer_is_the_worst_of_the_last_run(node: ScriptedNode):
    node.finds = {"link": [Verdict.WARN], "heavy": [Verdict.FAIL], "other": [Verdict.UNKNOWN]}
    answer = await node.answer(request("link", "heavy", "other"))
    assert (answer.verdict, answer.reason, answer.message) == ("FAIL", "Failed", "heavy: heavy is FAIL")
    assert node.ran == ["link", "heavy", "other"], "each is run: whoever asked wants to know all of it"


async def test_between_two_runs_the_interval_passes(node: ScriptedNode):
    await node.answer(request("link", runs="3", interval_s="90"))
    assert node.clock.slept == [90.0, 90.0]


async def test_after_a_restart_the_interval_goes_on_and_a_clock_that_was_set_does_not_stretch_it(node: ScriptedNode):
    half_way = StoredRequest(id="r1", runs=1, passes=1, ran_at=NOON - 60.0)
    await node.answer(request("link", runs="2", interval_s="90"), [half_way])
    assert node.clock.slept == [30.0]
    node.clock.slept.clear()
    ahead = StoredRequest(id="r1", runs=1, passes=1, ran_at=NOON + 1e9)
    await node.answer(request("link", runs="2", interval_s="90"), [ahead])
    assert node.clock.slept == [90.0]


async def test_runs_are_no_publication_until_the_answer(node: ScriptedNode):
    async with node.at_work(request("link", runs="2")) as requests:
        seen = set()
        while not requests.answers():
            seen.add(tuple((state.runs, state.passes) for state in requests.stored()))
            await asyncio.sleep(0)
        assert ((1, 1),) in seen, "kept, though"


# --- idle nodes, late requests


async def test_a_busy_node_is_looked_at_until_it_is_idle_and_a_refusal_is_no_run(node: ScriptedNode):
    node.busy = "pod team-a/train-0 holds nvidia.com/gpu"
    async with node.at_work(request("heavy")) as requests:
        await until(lambda: len(node.asked) > 3)
        assert set(node.clock.slept) == {LOOK_S}
        assert requests.stored() == ()
        node.busy = ""
        await until(requests.answers)
        assert requests.answers()[0].runs == 1


@pytest.mark.parametrize(("expires", "waited_s"), [(NOON + 25.0, 25.0), (0.0, PATIENCE_S)])
async def test_a_node_that_stays_busy_is_unknown_at_the_end(node: ScriptedNode, expires: float, waited_s: float):
    node.busy = "pod team-a/train-0 holds nvidia.com/gpu"
    answer = await node.answer(request("heavy", expires=expires))
    assert (answer.verdict, answer.reason, answer.message) == ("UNKNOWN", "Busy", node.busy)
    assert (answer.runs, node.clock.now) == (0, NOON + waited_s)


async def test_force_runs_beside_a_job(node: ScriptedNode):
    node.busy = "pod team-a/train-0 holds nvidia.com/gpu"
    assert (await node.answer(request("heavy", force=True))).verdict == "PASS"
    assert node.asked[0][2] is True


async def test_one_that_waits_for_an_idle_node_holds_up_no_other(node: ScriptedNode):
    node.busy = "a job"
    async with node.at_work(request("heavy", name="r1"), request("link", name="r2")) as requests:
        await until(requests.answers)
        assert [answer.id for answer in requests.answers()] == ["r2"]


async def test_heavy_requests_run_one_after_another_in_their_order(node: ScriptedNode):
    node.hold.clear()
    async with node.at_work(request("heavy", name="r1"), request("other", name="r2")) as requests:
        await until(lambda: node.asked)
        await settle()
        assert [name for name, *_ in node.asked] == ["heavy"]
        node.hold.set()
        await until(lambda: len(requests.answers()) == 2)
        assert node.ran == ["heavy", "other"]


async def test_too_late_to_begin_is_expired(node: ScriptedNode):
    answer = await node.answer(request("link", expires=NOON - 1))
    assert (answer.verdict, answer.reason, answer.runs) == ("UNKNOWN", "Expired", 0)
    assert node.asked == []


async def test_one_whose_turn_comes_too_late_is_expired(node: ScriptedNode):
    node.hold.clear()
    late = request("other", name="r2", expires=NOON + 30)
    async with node.at_work(request("heavy", name="r1"), late) as requests:
        await until(lambda: node.asked)
        node.clock.now += 31
        node.hold.set()
        await until(lambda: len(requests.answers()) == 2)
        assert [answer.reason for answer in requests.answers()] == ["", "Expired"]


async def test_what_began_in_time_goes_on_after_it(node: ScriptedNode):
    answer = await node.answer(request("link", runs="3", interval_s="60", expires=NOON + 30))
    assert (answer.verdict, answer.runs) == ("PASS", 3)


async def test_a_withdrawn_request_is_called_off(node: ScriptedNode):
    node.hold.clear()
    async with node.at_work(request("heavy")) as requests:
        await until(lambda: node.asked)
        await settle()
        requests.apply_requests([])
        await until(lambda: node.cancelled == 1)
        node.hold.set()
        await settle()
        assert node.ran == []
        requests.apply_requests([request("heavy")])
        await until(requests.answers)
        assert node.ran == ["heavy"], "asked again, it is carried out"


# --- parameters


@pytest.mark.parametrize(
    ("params", "limits"),
    [
        ({"limit": "7.5"}, {"link": 7.5, "heavy": 7.5}),
        ({"heavy.limit": "7.5"}, {"link": 4.0, "heavy": 7.5}),
        ({"heavy.limit": "7.5", "limit": "2"}, {"link": 2.0, "heavy": 7.5}),
    ],
)
async def test_a_parameter_is_for_all_checks_or_for_the_one_it_names(node: ScriptedNode, params, limits):
    await node.answer(request("link", "heavy", **params))
    assert {name: given.limit for name, given, _ in node.asked} == limits
    assert {given.depth for _, given, _ in node.asked} == {3}, "what is not given stays as configured"


async def test_files_of_the_node_may_be_named_by_who_may_write_the_spec(node: ScriptedNode):
    await node.answer(request("link", table="/etc/table.csv"))
    assert node.asked[0][1] == Limits(depth=3, table=Path("/etc/table.csv"))


async def test_a_stream_can_be_asked(node: ScriptedNode):
    assert (await node.answer(request("dmesg"))).verdict == "PASS"


async def test_all_means_every_check(node: ScriptedNode):
    assert (await node.answer(request("all"))).verdict == "PASS"
    assert sorted(node.ran) == ["dmesg", "heavy", "link", "other"]


DEVICE = "gpu/0000:3b:00.0"


async def test_whose_devices_are_no_work_reaches_the_node(node: ScriptedNode):
    await node.answer(request("heavy", beside="team-a/train-"))
    assert (node.scopes, node.asked[0][2]) == ([RunScope("team-a/train-")], False)


async def test_one_device_reaches_the_check_and_the_node(node: ScriptedNode):
    await node.answer(request("link", "heavy", device=DEVICE, held_as="0123456,ba98765"))
    address = DEVICE.removeprefix("gpu/")
    assert [each[1] for each in node.asked] == [Limits(depth=3), Limits(depth=3, only=address)]
    assert set(node.scopes) == {RunScope(device=address, held_as=("0123456", "ba98765"))}


@pytest.mark.parametrize(
    ("asked", "place", "allowed"),
    [
        (request("other", device=DEVICE), "params.device: other ", ""),
        (request("heavy", "other", device=DEVICE), "params.device: other ", ""),
        *(
            (request("heavy", device=text), "params.device: ", "gpu/0000:3b:00.0")
            for text in ("0000:3b:00.0", "gpu/0000:3B:00.0", "gpu/GPU-1", "nic/0000:3b:00.0", "gpu/", "gpu/3b:00.0")
        ),
        *((request("heavy", held_as=text), "params.held_as: ", "12") for text in ("x", "0123456,", "012345A")),
        (request(), "checks: ", "dmesg, heavy, link, other"),
        (request("gpu"), "checks: ", '"gpu"'),
        (request("link", ""), "checks: ", '""'),
        (
            request("link", nonsense="1"),
            "params: ",
            "runs, passes, interval_s, sees, beside, device, held_as, if_installed ",
        ),
        (request("link", **{"heavy.limit": "1"}), "params.heavy.limit: 'heavy' ", ""),
        (request("link", **{"link.x": "1"}), "params: ", "runs, passes, "),
        (request("link", **{"": "1"}), "params: ", "runs, passes, "),
        (request("link", limit="fast"), "params.link.limit: 'fast': ", "number"),
        (request("dmesg", limit="5"), "params.dmesg: limit: ", ""),
        *(
            (request("link", runs=text), "params.runs: ", "1 to 100")
            for text in ("0", "101", "-1", "1.5", "", "²", "9" * 9)
        ),
        (request("link", runs="9" * 200), "params.runs: ", ""),
        (request("link", runs="2", passes="3"), "params.passes: '3': ", "1 to 2"),
        (request("link", passes="0"), "params.passes: '0': ", "1 to 1"),
        (request("link", sees="a,"), "params.sees: ", ""),
        *((request("link", beside=text), "params.beside: ", "") for text in ("team-a", "team-a/", "/train-0", "/")),
        *(
            (request("link", interval_s=text), "params.interval_s: ", "")
            for text in ("x", "nan", "-1", "1e9", "inf", "")
        ),
        (CheckRequest(id="r1", checks=("link",), expires="soon"), "expires: 'soon': ", "Z"),
    ],
)
async def test_nonsense_is_answered_with_what_is_allowed_and_runs_nothing(
    node: ScriptedNode, asked: CheckRequest, place: str, allowed: str
):
    answer = await node.answer(asked)
    assert (answer.verdict, answer.reason, answer.runs) == ("UNKNOWN", "BadRequest", 0)
    assert answer.message.startswith(place)
    assert allowed in answer.message
    assert len(answer.message.encode()) <= 256
    assert node.asked == []


async def test_an_object_edited_by_hand_is_survived(node: ScriptedNode):
    asked = [
        request("link", name=""),
        request("link", name="x" * 129),
        request("link", name="r1"),
        request("heavy", name="r1"),
        *(request("link", name=f"n{n}") for n in range(40)),
    ]
    async with node.at_work(*asked) as requests:
        await until(lambda: len(requests.answers()) >= 13)
        await settle()
        names = [answer.id for answer in requests.answers()]
        assert names == ["r1", *(f"n{n}" for n in range(12))], "the first 16 entries, each id once"
        assert "heavy" not in node.ran


async def test_a_request_that_breaks_us_is_answered_and_others_go_on(node: ScriptedNode, caplog):
    run_check = node.run_check

    async def break_on_heavy(running: NodeCheck, parameters: Parameters, force: bool, scope: RunScope) -> CheckOutcome:
        if running.name == "heavy":
            raise RuntimeError("ours")
        return await run_check(running, parameters, force, scope)

    node.run_check = break_on_heavy  # type: ignore[method-assign]
    async with node.at_work(request("heavy", name="r1"), request("link", name="r2")) as requests:
        await until(lambda: len(requests.answers()) == 2)
        one, two = requests.answers()
        assert (one.verdict, one.reason, one.message) == ("UNKNOWN", "RequestFailed", "RuntimeError: ours")
        assert two.verdict == "PASS"
    assert ["r1" in record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == [True]


# --- the end of the agent


async def test_the_end_of_the_agent_is_no_run(node: ScriptedNode):
    stopped = Result(check="heavy", verdict=Verdict.UNKNOWN, reason=STOPPING, message="the agent stops")
    node.finds["heavy"] = [Verdict.PASS, stopped]
    async with node.at_work(request("heavy", runs="2")) as requests:
        await until(lambda: len(node.asked) == 2)
        await settle()
        assert requests.answers() == ()
        [kept] = requests.stored()
        assert (kept.runs, kept.passes, kept.begun) == (1, 1, 0)
    answer = await node.answer(request("heavy", runs="2"), [kept])
    assert (answer.verdict, answer.runs) == ("PASS", 2)


async def test_a_long_run_is_noted_as_begun_once_however_many_checks_it_has(node: ScriptedNode, loop_time: LoopTime):
    node.hold.clear()
    async with node.at_work(request("link", "heavy")) as requests:
        await until(lambda: node.asked)
        await loop_time.passes(MARK_S)
        assert [(state.begun, state.runs) for state in requests.stored()] == [(1, 0)]
        assert node.reporter.changes == 1, "to be saved"
        node.hold.set()
        await until(lambda: len(node.asked) == 2)
        node.hold.clear()
        await loop_time.passes(MARK_S)
        assert [(state.begun, state.runs) for state in requests.stored()] == [(1, 0)]
        assert node.reporter.changes == 1


async def test_a_run_that_was_cut_off_is_done_again_once_and_then_counts(node: ScriptedNode, loop_time: LoopTime):
    kept: Sequence[StoredRequest] = ()
    for n in range(TRIES):
        node.hold.clear()
        node.asked.clear()
        async with node.at_work(request("heavy", runs="2", passes="1"), stored=kept) as requests:
            await until(lambda: node.asked)
            await loop_time.passes(MARK_S)
            kept = requests.stored()  # and here its node goes down
        assert [state.begun for state in kept] == [n + 1]
    node.hold.set()
    answer = await node.answer(request("heavy", runs="2", passes="1"), kept)
    assert (answer.verdict, answer.runs, answer.passes) == ("PASS", 2, 1)
    answer = await node.answer(request("heavy"), kept)
    assert (answer.verdict, answer.reason, answer.runs) == ("UNKNOWN", "Interrupted", 1)
    assert " 2 times" in answer.message


@pytest.mark.parametrize("seed", range(30))
async def test_whatever_is_killed_when_counts_never_exceed_and_answers_never_change(node: ScriptedNode, seed: int):
    """Processes are killed at any turn of the loop, with a state file and a NodeHealth that are each a bit behind."""
    rng = random.Random(seed)
    runs = rng.randint(1, 5)
    passes = rng.randint(1, runs)
    asked = request("link", runs=str(runs), passes=str(passes))
    saved: tuple[StoredRequest, ...] = ()
    published: tuple[RequestAnswer, ...] = ()
    ever: set[RequestAnswer] = set()
    kills = 0
    while not (published and rng.random() < 0.3):
        requests = node.requests(saved)
        requests.apply_requests([asked], published)
        task = asyncio.create_task(requests.run())
        node.finds["link"] = [rng.choice([Verdict.PASS, Verdict.FAIL]) for _ in range(100)]
        begun = len(node.ran)
        for _ in range(rng.randint(0, 60)):
            await asyncio.sleep(0)
            if rng.random() < 0.5:
                saved = requests.stored()
            if rng.random() < 0.5:
                published = requests.answers() or published
                ever.update(published)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        kills += 1
        assert len(node.ran) - begun <= runs
        assert all(state.runs <= runs and state.passes <= state.runs for state in requests.stored())
    [answer] = ever
    assert (answer.verdict == "PASS") == (answer.passes >= passes)
    assert answer.passes >= passes or runs - answer.runs < passes - answer.passes
    assert kills


# --- checks that the node cannot run


def lacking(reason: str, verdict: Verdict = Verdict.UNKNOWN) -> Result:
    return Result(check="heavy", verdict=verdict, reason=reason, message="dcgmi: not found")


@pytest.mark.parametrize("reason", ["ToolMissing", "NoHostEngine"])
async def test_a_check_that_is_not_installed_is_left_out_if_the_request_allows_it(reason: str):
    node = ScriptedNode()
    node.finds["heavy"] = [lacking(reason), lacking(reason)]
    answer = await node.answer(request("link", "heavy", runs="2", if_installed="heavy"))
    assert (answer.verdict, answer.passes, answer.without) == ("PASS", 2, ("heavy",))
    assert answer.reason == "NotInstalled"


@pytest.mark.parametrize(
    ("found", "params"),
    [
        (lacking("ToolMissing"), {}),
        (lacking("ToolMissing"), {"if_installed": "link"}),
        (lacking("DriverMissing"), {"if_installed": "heavy"}),
        (lacking("Timeout"), {"if_installed": "heavy"}),
        (lacking("ToolMissing", Verdict.FAIL), {"if_installed": "heavy"}),
    ],
)
async def test_nothing_else_is_left_out(found: Result, params: dict[str, str]):
    node = ScriptedNode()
    node.finds["heavy"] = [found]
    answer = await node.answer(request("link", "heavy", **params))
    assert (answer.verdict, answer.reason, answer.without) == (found.verdict, found.reason, ())


async def test_what_is_left_out_hides_no_failure_of_the_others():
    node = ScriptedNode()
    node.finds |= {"link": [Verdict.FAIL], "heavy": [lacking("ToolMissing")]}
    assert (await node.answer(request("link", "heavy", if_installed="heavy"))).verdict == "FAIL"


async def test_a_check_that_is_not_enabled_is_left_out_as_well(node: ScriptedNode):
    answer = await node.answer(request("link", "dcgm", if_installed="dcgm"))
    assert (answer.verdict, answer.without, node.ran) == ("PASS", ("dcgm",), ["link"])
    assert (await node.answer(request("link", "dcgm", name="r2"))).reason == "BadRequest"


@pytest.mark.parametrize("names", ["link", "dcgm", "link,heavy", ",", "link,"])
async def test_a_request_can_leave_out_only_some_of_its_checks(node: ScriptedNode, names: str):
    assert (await node.answer(request("link", if_installed=names))).reason == "BadRequest"
