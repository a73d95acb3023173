"""`muster check`: what runs beside what, what is said on the way, how results read."""

import asyncio
import re
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.wording.facts import missing_facts

from muster_checks.base.declaration import Check, Cost, NodeView, Parameters
from muster_checks.base.execution import NotHere
from muster_checks.base.vocabulary import Finding, Measurement, Result, Verdict
from muster_checks.registry import load_registry
from muster_cli.__main__ import main
from muster_cli.cluster.local_checks import run_checks
from muster_cli.commands.check import read_parameters
from muster_cli.report.samples import BadSample, judge_sample
from muster_cli.report.verdicts import as_lines
from muster_cli.usage import UsageError

SOUND = Finding(
    component="gpu/0000:3b:00.0",
    verdict=Verdict.PASS,
    reason="Fast",
    message="fast",
    measurements=(Measurement("to_device", 52.25, "GB/s", 4.0), Measurement("errors", 0.0)),
)
SLOW = Finding(component="gpu/0000:5e:00.0", verdict=Verdict.FAIL, reason="Slow", message="slow: 3 GB/s, limit 4")


class Slow(Parameters):
    limit: float = 4.0


class Diary:
    """Probes that write down when they run."""

    def __init__(self) -> None:
        self.running: set[str] = set()
        self.beside: dict[str, set[str]] = {}

    def check(self, name: str, cost: Cost = Cost.LIGHT, found: Sequence[Finding] = (SOUND,)) -> Check:
        async def probe(_node: NodeView, _parameters: Parameters) -> Sequence[Finding]:
            self.running.add(name)
            for _ in range(10):
                await asyncio.sleep(0)
                self.beside.setdefault(name, set()).update(self.running - {name})
            self.running.discard(name)
            return found

        return Check(
            name=name, description="", cost=cost, parameters=Slow, timeout_s=600.0, devices=("gpu",), probe=probe,
            recorded=lambda text, _: list(found) if text.startswith(name.encode()) else None,
        )  # fmt: skip


async def test_light_checks_run_side_by_side_and_heavy_ones_alone():
    diary = Diary()
    checks = [
        diary.check("heavy", Cost.HEAVY),
        diary.check("one"),
        diary.check("two"),
        diary.check("bandwidth", Cost.HEAVY),
    ]
    results = await run_checks(checks, NodeView(), {check.name: Slow() for check in checks})
    assert [result.check for result in results] == ["heavy", "one", "two", "bandwidth"]
    assert diary.beside["one"] == {"two"}
    assert diary.beside["heavy"] == diary.beside["bandwidth"] == set()


async def test_one_check_that_breaks_takes_no_other_with_it():
    async def broken(_node: NodeView, _parameters: Parameters) -> Sequence[Finding]:
        raise RuntimeError("a bug")

    async def absent(_node: NodeView, _parameters: Parameters) -> Sequence[Finding]:
        raise NotHere("no such thing")

    made = {
        name: Check(name=name, description="", cost=Cost.LIGHT, parameters=Slow, timeout_s=600, devices=(), probe=probe)
        for name, probe in {"broken": broken, "absent": absent}.items()
    }
    made["fine"] = Diary().check("fine")
    results = await run_checks(list(made.values()), NodeView(), {name: Slow() for name in made})
    assert [(r.check, r.verdict, r.reason) for r in results] == [
        ("broken", Verdict.UNKNOWN, "ProbeFailed"),
        ("absent", Verdict.SKIP, "NoDevice"),
        ("fine", Verdict.PASS, ""),
    ]


def test_all_light_checks_of_this_machine_take_no_longer_than_the_slowest_may(capsys: pytest.CaptureFixture[str]):
    started = time.monotonic()
    code = main(["check"])
    light = [check for check in load_registry(plug_ins=[]).values() if check.cost is Cost.LIGHT and check.enabled]
    assert time.monotonic() - started < max(check.timeout_s for check in light), "a guard against hanging"
    said = capsys.readouterr().out
    assert code in (0, 1, 2, 3)
    assert all(f"\n{check.name} " in f"\n{said}" for check in light)
    assert "ProbeFailed" not in said


def test_parameters_go_to_every_check_that_has_them_or_to_one():
    checks = [Diary().check("one"), Diary().check("two"), load_registry(plug_ins=[])["pvc"]]
    chosen = read_parameters(checks, ["limit=5", "two.limit=6"])
    assert (chosen["one"], chosen["two"]) == (Slow(limit=5.0), Slow(limit=6.0))


@pytest.mark.parametrize(
    ("word", "told"),
    [
        ("limit", ("[CHECK.]PARAMETER=VALUE",)),
        ("limitt=1", ("--set limitt=1", '"limit"')),
        ("three.limit=1", ("--set three.limit=1", '"one.limit"')),
        ("limit=fast", ("one.limit: 'fast'",)),
    ],
)
def test_wrong_parameter_is_an_error_with_a_suggestion(word: str, told: tuple[str, ...]):
    with pytest.raises(UsageError) as caught:
        read_parameters([Diary().check("one")], [word])
    assert not missing_facts(str(caught.value), *told)


def test_a_sample_is_judged_by_the_check_of_a_package_that_recognises_it(tmp_path: Path):
    sample = tmp_path / "sample"
    sample.write_bytes(b"one: sample")
    checks = [Diary().check("one", found=[SLOW]), Diary().check("two")]
    parameters = {check.name: Slow() for check in checks}
    report = judge_sample(sample, checks, parameters, named=False)
    (result,) = report.results
    assert "one" in report.heading[0]
    assert (result.check, result.verdict) == ("one", Verdict.FAIL)
    named = judge_sample(sample, checks, parameters, named=True).results
    assert [(r.check, r.verdict, r.reason) for r in named][1] == ("two", Verdict.UNKNOWN, "NotASample")


def test_a_sample_that_cannot_be_recognised_or_read_is_named(tmp_path: Path):
    sample = tmp_path / "sample"
    sample.write_bytes(b"three")
    (result,) = judge_sample(sample, [Diary().check("one")], {"one": Slow()}, named=False).results
    assert (result.verdict, result.reason) == (Verdict.UNKNOWN, "NotASample")
    assert str(sample) in result.message
    with pytest.raises(BadSample, match=re.escape(str(tmp_path / "gone"))):
        judge_sample(tmp_path / "gone", [], {}, named=False)
    with pytest.raises(BadSample, match="directory"):
        judge_sample(tmp_path, [], {}, named=False)


def test_results_read_as_one_line_a_check_and_what_is_not_well_below():
    results = [
        Result(check="pciebw", verdict=Verdict.FAIL, findings=(SLOW, SOUND)),
        Result(check="gpucount", verdict=Verdict.PASS, findings=(SOUND,)),
        Result(check="ipu", verdict=Verdict.SKIP, reason="NoDevice", message="no IPU"),
    ]
    assert as_lines(results, details=False) == [
        "pciebw    FAIL",
        "            FAIL     gpu/0000:5e:00.0 Slow: slow: 3 GB/s, limit 4",
        "gpucount  PASS     1 component",
        "ipu       SKIP     NoDevice: no IPU",
    ]
    assert as_lines(results[1:2], details=True)[1] == (
        "            PASS     gpu/0000:3b:00.0 to_device 52.25 GB/s (limit 4), errors 0"
    )


def test_number_without_unit_does_not_replace_the_message():
    finding = Finding(
        component="host",
        verdict=Verdict.PASS,
        reason="ClockStands",
        message="the clock runs",
        measurements=(Measurement("ClockProblem", 0.0),),
    )
    [_, line] = as_lines([Result(check="uptime", verdict=Verdict.PASS, findings=(finding,))], details=True)
    assert line.split() == ["PASS", "host", *finding.message.split()]


def test_colours_do_not_change_the_text():
    results = [Result(check="pciebw", verdict=Verdict.FAIL, findings=(SLOW,))]
    (head, line) = as_lines(results, details=False, coloured=True)
    assert "\x1b[1;31mFAIL   \x1b[0m" in head
    assert "\x1b" in line
