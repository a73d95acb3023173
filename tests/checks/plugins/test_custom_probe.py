"""Real executables under the custom plug-in protocol: what exit codes and output come to, and when they run."""

import asyncio
import os
import re
from collections.abc import Callable

import pytest
from tests.loop_time import LoopTime
from tests.processes import has_ended
from tests.wording.facts import missing_facts

from muster_checks.base.commands import Output
from muster_checks.base.declaration import NodeView
from muster_checks.base.execution import run_probe
from muster_checks.base.vocabulary import Finding
from muster_checks.plugins.custom import CustomRule, read_custom
from muster_checks.plugins.custom_probe import CustomProbe, ScriptResult, ScriptStatus, judge, read_result
from muster_checks.testing.recorded import RecordedCommands

PERMANENT = {"type": "permanent", "condition": "Broken"}


@pytest.fixture
def probe(bench, custom):
    """``probe(rule, …, **overall)``: the probe of a file of these rules, which may take their time."""
    return lambda *rules, **overall: CustomProbe(
        read_custom(custom(*rules, **{"timeout": "30s", **overall}), bench.folder)
    )


@pytest.fixture
def run(bench, probe):
    """The one finding of one rule whose executable is ``text``: ``await run(text, rule, **overall)``."""

    async def once(text: str, rule: dict[str, object] | None = None, **overall: object) -> Finding:
        path = bench.script("plugin.sh", text)
        (finding,) = await probe({"path": path, **(rule or {})}, **overall)(bench.node, None)
        return finding

    return once


def short(finding: Finding) -> tuple[str, str]:
    return str(finding.verdict), finding.message


# ---- what an exit code comes to ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "temporary", "permanent"),
    [
        ("echo ' fine '", ("PASS", "fine"), ("PASS", "it works")),
        ("echo bad; exit 1", ("WARN", "bad"), ("FAIL", "Broken: bad")),
        ("echo '?'; exit 2", ("UNKNOWN", "?"), ("UNKNOWN", "Broken unknown: ?")),
        ("echo '?'; exit 3", ("UNKNOWN", "?"), ("UNKNOWN", "Broken unknown: ?")),
        ("echo said; kill -TERM $$", ("UNKNOWN", "said"), None),
    ],
)
async def test_an_exit_code_is_the_verdict_and_stdout_the_message(text, temporary, permanent, run):
    assert short(await run(text)) == temporary
    if permanent is not None:
        assert short(await run(text, PERMANENT)) == permanent


@pytest.mark.parametrize(
    ("text", "temporary", "permanent", "fact"),
    [
        ("exit 1", "WARN", "FAIL", "1"),
        ("exit 127", "UNKNOWN", "UNKNOWN", "127"),
        ("kill -9 $$", "UNKNOWN", "UNKNOWN", "SIGKILL"),
    ],
)
async def test_one_that_says_nothing_is_told_by_how_it_ended(text, temporary, permanent, fact, run):
    finding = await run(text)
    assert finding.verdict == temporary
    assert missing_facts(finding.message, "plugin.sh", fact) == []
    finding = await run(text, PERMANENT)
    assert finding.verdict == permanent
    assert missing_facts(finding.message, "Broken", "plugin.sh", fact) == []


async def test_a_condition_is_a_measurement_of_its_type_and_asks_for_nothing(run):
    finding = await run("exit 1", PERMANENT)
    assert [(m.name, m.value) for m in finding.measurements] == [("Broken", 1.0)]
    assert (finding.component, finding.reason, finding.fault_class) == ("host", "Reason0", "")
    assert [m.value for m in (await run("exit 0", PERMANENT)).measurements] == [0.0]
    assert (await run("exit 2", PERMANENT)).measurements == ()


async def test_output_is_cut_at_its_limit_between_letters(run):
    assert (await run("echo äöü", max_output_length=3)).message == "ä"
    assert (await run("echo 0123456789", max_output_length=4)).message == "0123"
    assert (await run("echo 0123456789", max_output_length=0)).message == ""


async def test_a_flood_of_output_is_read_and_thrown_away(run):
    finding = await run("head -c 3000000 /dev/zero | tr '\\0' x; exit 1", max_output_length=100_000)
    assert finding.verdict == "WARN"
    assert finding.message.startswith("xxx")
    assert len(finding.message.encode()) == 256


async def test_stdout_that_is_no_text_is_shown_as_far_as_it_is(run):
    assert short(await run("printf 'a\\377\\000b\\033[1mc\\nd'; exit 1")) == ("WARN", "ab�[1mc d")


async def test_stderr_is_only_logged(run, caplog):
    caplog.set_level("INFO")
    finding = await run("echo out; echo err >&2; exit 1")
    assert short(finding) == ("WARN", "out")
    assert re.search(r"stderr.*\berr\b", caplog.text)


async def test_one_that_hangs_is_killed_with_all_its_children(run, bench, loop_time: LoopTime):
    pids = bench.folder / "pids"
    pids.touch()
    text = f"echo half; sleep 60 & echo $! >> {pids}; (sleep 60 & echo $! >> {pids}; wait) & wait"
    running = asyncio.create_task(run(text, {**PERMANENT, "timeout": "20s"}, max_output_length=200))
    await until(lambda: pids.read_text().count("\n") == 2)
    await loop_time.passes(20)
    finding = await running
    assert finding.verdict == "UNKNOWN"
    assert missing_facts(finding.message, "Broken", '"./plugin.sh"', '"half"') == []
    assert len(pids.read_text().split()) == 2
    await until(lambda: all(has_ended(int(pid)) for pid in pids.read_text().split()))


async def test_a_child_left_behind_is_ended_and_changes_nothing_of_the_answer(run, bench):
    pid = bench.folder / "pid"
    assert short(await run(f"sleep 60 & echo $! > {pid}; echo bad; exit 1")) == ("WARN", "bad")
    await until(lambda: has_ended(int(pid.read_text())))


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - of a process
            await asyncio.sleep(0.01)


async def test_what_cannot_be_started_says_why(bench, probe):
    plain = bench.folder / "plain.sh"
    plain.write_text("#!/bin/sh\nexit 0\n")
    plain.chmod(0o644)
    bare = bench.folder / "bare.sh"
    bare.write_text("exit 0\n")
    bare.chmod(0o755)
    findings = await probe({"path": "plain.sh"}, {"path": "bare.sh"}, {"path": "."})(bench.node, None)
    assert [finding.verdict for finding in findings] == ["UNKNOWN"] * 3
    if os.geteuid() != 0 or not os.access(plain, os.X_OK):
        assert "Permission denied" in findings[0].message
    assert "Exec format error" in findings[1].message
    assert "Permission denied" in findings[2].message


async def test_an_executable_that_has_gone_since_is_unknown(bench, probe):
    path = bench.script("plugin.sh", "exit 0")
    running = probe({"path": path})
    (bench.folder / "plugin.sh").unlink()
    (finding,) = await running(bench.node, None)
    assert short(finding) == ("UNKNOWN", "plugin.sh: not found")


async def test_arguments_are_passed_as_they_are_and_no_shell_reads_them(bench, probe):
    path = bench.script("plugin.sh", 'printf "%s|" "$@"; printf %s "$LC_ALL"; exit 1')
    (finding,) = await probe({"path": path, "args": ["$HOME", "a b", "", "; false"]})(bench.node, None)
    assert finding.message == "$HOME|a b||; false|C"


# ---- several rules -------------------------------------------------------------------------------------------------


async def test_of_rules_with_one_reason_the_worst_is_told(bench, probe):
    good, bad = bench.script("good.sh", "exit 0"), bench.script("bad.sh", "echo bad; exit 1")
    same = {"reason": "Same"}
    findings = await probe(
        {"path": bad, **same}, {"path": bad, **same, **PERMANENT}, {"path": good, **same}, {"path": good}
    )(bench.node, None)
    assert [(f.reason, *short(f)) for f in findings] == [("Same", "FAIL", "Broken: bad"), ("Reason3", "PASS", "")]


class Counting(RecordedCommands):
    """Counts how many commands run at once."""

    active = peak = 0

    async def run(self, argv, **options) -> Output:
        self.active += 1
        self.peak = max(self.peak, self.active)
        for _ in range(5):
            await asyncio.sleep(0)
        self.active -= 1
        return await super().run(argv, **options)


@pytest.mark.parametrize(("concurrency", "peak"), [(1, 1), (2, 2), (9, 5)])
async def test_no_more_run_at_once_than_is_allowed(concurrency, peak, bench, probe):
    commands = Counting({})
    path = bench.script("plugin.sh", "exit 0")
    await probe(*[{"path": path}] * 5, concurrency=concurrency)(NodeView(commands=commands), None)
    assert (commands.peak, len(commands.calls)) == (peak, 5)


async def test_a_rule_that_is_not_due_says_what_it_said_last(bench, probe):
    log = bench.folder / "log"
    often = bench.script("often.sh", f"echo often >> {log}")
    seldom = bench.script("seldom.sh", f"echo seldom >> {log}; echo bad; exit 1")
    running = probe({"path": often}, {"path": seldom, "invoke_interval": "90s"}, invoke_interval="30s", concurrency=1)
    for bench.now_s in (1000, 1030, 1059.9, 1089.9, 1119.9):  # a run may come a little early
        findings = await running(bench.node, None)
        assert [str(finding.verdict) for finding in findings] == ["PASS", "WARN"]
    assert log.read_text().split() == ["often", "seldom", "often", "often", "often", "seldom", "often"]


async def test_a_rule_never_overlaps_itself(bench, probe):
    gate, log = bench.folder / "gate", bench.folder / "log"
    os.mkfifo(gate)
    path = bench.script("plugin.sh", f"echo ran >> {log}; read -r word < {gate}; echo $word; exit 1")
    running = probe({"path": path})
    first = asyncio.create_task(running(bench.node, None))
    await until(log.exists)
    bench.now_s += 3600
    (meanwhile,) = await running(bench.node, None)
    assert meanwhile.verdict == "UNKNOWN"
    await asyncio.to_thread(gate.write_text, "late\n")
    (finding,) = await first
    assert short(finding) == ("WARN", "late")
    assert log.read_text() == "ran\n"


async def test_a_run_that_is_cancelled_leaves_no_executable_and_the_next_runs_again(bench, probe):
    pids = bench.folder / "pids"
    path = bench.script("plugin.sh", f"echo $$ >> {pids}; exec sleep 60")
    running = probe({"path": path, "timeout": "100s"}, timeout="100s", invoke_interval="1s")
    pids.touch()
    for run in (1, 2):
        task = asyncio.create_task(running(bench.node, None))
        await until(lambda run=run: pids.read_text().count("\n") == run)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        bench.now_s += 10
    await until(lambda: all(has_ended(int(pid)) for pid in pids.read_text().split()))


@pytest.mark.parametrize(("follow", "told"), [(False, "Broken: first"), (True, "Broken: second")])
async def test_an_open_condition_takes_new_messages_only_where_that_is_asked_for(follow, told, bench, probe):
    path = bench.script("plugin.sh", "echo first; exit 1")
    running = probe({"path": path, **PERMANENT}, enable_message_change_based_condition_update=follow)
    await running(bench.node, None)
    bench.script("plugin.sh", "echo second; exit 1")
    bench.now_s += 30
    (finding,) = await running(bench.node, None)
    assert short(finding) == ("FAIL", told)
    bench.script("plugin.sh", "exit 0")
    bench.now_s += 30
    (finding,) = await running(bench.node, None)
    assert short(finding) == ("PASS", "it works")


async def test_an_event_has_the_message_of_its_own_run(bench, probe):
    path = bench.script("plugin.sh", "echo first; exit 1")
    running = probe({"path": path})
    await running(bench.node, None)
    bench.script("plugin.sh", "echo second; exit 1")
    bench.now_s += 30
    assert [short(finding) for finding in await running(bench.node, None)] == [("WARN", "second")]


async def test_the_whole_check_gives_one_result(bench, custom):
    from muster_checks.plugins.folder import load_folder

    rule = {"path": bench.script("bad.sh", "echo bad; exit 1"), **PERMANENT}
    bench.config("x.json", custom(rule, timeout="30s"))
    (check,) = load_folder(bench.folder)
    result = await run_probe(check, bench.node, check.parameters())
    assert (result.check, result.verdict, result.reason, result.message) == ("mine", "FAIL", "Reason0", "Broken: bad")


# ---- pure ----------------------------------------------------------------------------------------------------------

RULE = CustomRule(reason="R", condition="", sound="", path="./x", argv=("/x",), timeout_s=1, interval_s=1)


@pytest.mark.parametrize("code", [None, -64, -9, 2, 3, 126, 127, 255])
def test_nothing_but_0_and_1_is_an_answer(code):
    assert read_result(RULE, Output(argv=("/x",), exit_code=code), 80).status is ScriptStatus.UNKNOWN


def test_no_rules_no_findings():
    assert judge([]) == []
    assert judge([(RULE, ScriptResult(ScriptStatus.OK, "x"))])[0].verdict == "PASS"
