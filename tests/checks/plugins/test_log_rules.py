"""Log monitors of node-problem-detector over the kernel log: their rules as rows of the catalogue."""

import random
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
import re2
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.checks.bad_input import any_json, replaced

from muster_checks.base.declaration import Sign
from muster_checks.base.npd_json import FileRefused
from muster_checks.base.vocabulary import Origin, Verdict
from muster_checks.dmesg.catalogue.loader import load_catalogue
from muster_checks.dmesg.catalogue.npd_rules import reaches_over_lines, read_log_monitor, to_rows
from muster_checks.dmesg.catalogue.types import Catalogue, CatalogueError
from muster_checks.dmesg.judge import KernelLogJudge
from muster_checks.dmesg.sources.records import KernelLine

START = 1_700_000_000.0
Rules = Callable[..., Catalogue]


def monitor(*rules: object, **changes: object) -> dict[str, object]:
    """A kernel monitor's file; a rule may be its pattern alone, and condition ``Bad`` is there."""
    return {
        "plugin": "kmsg",
        "logPath": "/dev/kmsg",
        "lookback": "5m",
        "bufferSize": 10,
        "source": "mine",
        "conditions": [{"type": "Bad", "reason": "NotBad", "message": "it is not"}],
        "rules": [
            {"type": "temporary", "reason": f"Rule{i}", **(rule if isinstance(rule, dict) else {"pattern": rule})}
            for i, rule in enumerate(rules)
        ],
        **changes,
    }


def judge_of(*rules: object, **changes: object) -> KernelLogJudge:
    """A judge that knows nothing but these rules."""
    rows = to_rows(read_log_monitor(monitor(*rules, **changes)), "mine.json")
    return KernelLogJudge(Catalogue({}, {}, rows), clock=lambda: START)


def feed(judge: KernelLogJudge, *texts: str, uptime_s: float = 100.0) -> list[tuple[str, str]]:
    """(reason, message) of the signs that each line gives, at 2 s from one to the next."""
    signs = []
    for number, text in enumerate(texts):
        if not judge.interesting(text.encode()):
            continue
        line = KernelLine(text, START - 1000 + 2 * number, uptime_s, 6, 0, Origin.KERNEL, number, "")
        signs += [(event.reason, event.message) for event in judge.take(line) if isinstance(event, Sign)]
    return signs


# ---- the dumps -----------------------------------------------------------------------------------------------------

DUMPS = {
    "divide_zero": ["KernelFault"],
    "mount_blocked": ["TaskBlocked"],
    "null_pointer": ["KernelFault"],
    "oom_kill": ["OutOfMemory"],
    "overlay_warning": [],
    "read_only": ["RemountedReadOnly"],
    "runtime_blocked": ["TaskBlocked", "RuntimeBlocked"],
    "unregister_netdevice": ["DeviceKept"],
}
SHIPPED_DUMPS = {
    "au_opts_verify": [],
    "aufs_umount_hung": ["TaskHung"],
    "divide_zero": ["KernelOops"],
    "docker_hung": ["TaskHung", "DockerHung"],
    "null_pointer": ["KernelOops"],
    "oom_kill": ["OOMKilling"],
    "readonly_filesystem": ["FilesystemIsReadOnly"],
    "unregister_netdevice": ["UnregisterNetDevice"],
}


def judge_of_files(*files: Path) -> KernelLogJudge:
    """A judge that knows nothing but the rules of these files."""
    rows = [
        row for file in files for row in to_rows(read_log_monitor(msgspec.json.decode(file.read_bytes())), file.name)
    ]
    return KernelLogJudge(Catalogue({}, {}, tuple(rows)), clock=lambda: START)


@pytest.mark.parametrize("dump", DUMPS)
def test_a_dump_gives_the_reasons_of_its_rules(dump, dumps, samples):
    judge = judge_of_files(samples / "npd/kernel.json", samples / "npd/read-only.json")
    signs = feed(judge, *(dumps / dump).read_text().splitlines())
    assert [reason for reason, _ in signs] == DUMPS[dump]
    if dump == "runtime_blocked":
        assert signs[1][1].startswith("KernelStuck: INFO: task containerd:3187 ")


@pytest.mark.parametrize("dump", SHIPPED_DUMPS)
def test_its_own_dumps_give_its_own_reasons(dump, shared_data):
    npd = shared_data.folder / "npd"
    judge = judge_of_files(npd / "config/kernel-monitor.json", npd / "config/readonly-monitor.json")
    signs = feed(judge, *(npd / "kernel_log_generator" / dump).read_text().splitlines())
    assert [reason for reason, _ in signs] == SHIPPED_DUMPS[dump]


def test_beside_the_shipped_rows_each_line_is_told_once_of_each_reason(dumps, samples):
    judge = KernelLogJudge(load_catalogue(samples / "npd/kernel.json"), clock=lambda: START)
    signs = feed(judge, *(dumps / "runtime_blocked").read_text().splitlines())
    assert sorted(reason for reason, _ in signs) == ["KernelDeadlock", "RuntimeBlocked", "TaskBlocked", "TaskHung"]
    signs = feed(judge, *(dumps / "oom_kill").read_text().splitlines())
    assert sorted(reason for reason, _ in signs) == ["OOMKilling", "OutOfMemory"]
    assert [e.count for e in judge.tick(START) if isinstance(e, Sign)] == [], "nothing was held back as a second sign"


def test_beside_the_shipped_rows_a_rule_of_the_same_reason_is_told_once(shared_data):
    npd = shared_data.folder / "npd"
    judge = KernelLogJudge(load_catalogue(npd / "config/kernel-monitor.json"), clock=lambda: START)
    signs = feed(judge, *(npd / "kernel_log_generator/docker_hung").read_text().splitlines())
    assert sorted(reason for reason, _ in signs) == ["DockerHung", "KernelDeadlock", "TaskHung"]
    signs = feed(judge, *(npd / "kernel_log_generator/oom_kill").read_text().splitlines())
    assert [reason for reason, _ in signs] == ["OOMKilling"]


def test_a_whole_folder_of_its_files_is_a_catalogue_and_what_is_for_other_logs_changes_nothing(samples):
    catalogue = load_catalogue(samples / "npd")
    added = {row.name: row.source for row in catalogue.rows if "node-problem-detector k" in row.source}
    assert added["RuntimeBlocked"] == "node-problem-detector kernel.json"
    assert not {"KubeletStarted", "LayerNotUnpacked", "SectorsUnreadable"} & {row.name for row in catalogue.rows}


# ---- what a rule means ---------------------------------------------------------------------------------------------


def test_temporary_warns_and_permanent_fails_and_asks_for_nothing():
    warn, fail = to_rows(
        read_log_monitor(monitor("x", {"type": "permanent", "condition": "Bad", "pattern": "y"})), "mine.json"
    )
    assert (warn.verdict, warn.clears, warn.message) == (Verdict.WARN, "quiet", "{line}")
    assert (fail.verdict, fail.fault_class, fail.clears, fail.message) == (Verdict.FAIL, "", "boot", "Bad: {line}")
    assert (fail.component, fail.source) == ("host", "node-problem-detector mine.json")


def test_a_permanent_rule_named_as_a_shipped_warning_fails_too(tmp_path):
    path = tmp_path / "mine.json"
    rule = {"type": "permanent", "condition": "Bad", "reason": "OOMKilling", "pattern": "Killed process .*"}
    path.write_bytes(msgspec.json.encode(monitor(rule)))
    judge = KernelLogJudge(load_catalogue(path), clock=lambda: START)
    line = KernelLine("Killed process 7 (x) total-vm:1kB", START, 100.0, 6, 0, Origin.KERNEL, 1, "")
    assert [(e.reason, str(e.verdict)) for e in judge.take(line) if isinstance(e, Sign)] == [
        ("OOMKilling", "WARN"),
        ("OOMKilling", "FAIL"),
    ]


def test_a_suffix_follows_the_line():
    judge = judge_of({"pattern": "broken", "patternGeneratedMessageSuffix": "call the vendor"})
    ((reason, message),) = feed(judge, "disk is broken")
    assert reason == "Rule0"
    assert message.startswith("disk is broken")
    assert message.endswith("call the vendor")


def test_lines_of_the_delay_after_boot_do_not_count():
    for pattern in ("bad", r"^\n*bad"):
        judge = judge_of(pattern, delay="2m")
        assert feed(judge, "bad", uptime_s=119) == []
        assert feed(judge_of(pattern, delay="2m"), "bad", uptime_s=121) == [("Rule0", "bad")]


def test_two_rules_of_one_reason_are_told_once_for_a_line():
    judge = judge_of({"reason": "Oops", "pattern": "oops .*"}, {"reason": "Oops", "pattern": "oops again"})
    assert feed(judge, "oops again") == [("Oops", "oops again")]


# ---- where a pattern has to stand ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pattern", "line", "fires"),
    [
        ("SMP", "divide error: 0000 [#1] SMP ", True),
        ("SMP", "SMP divide", False),
        ("alpha|beta", "alpha at the beginning", False),
        ("alpha|beta", "at the end beta", True),
        ("severity: fatal$", "event severity: fatal\t ", True),
        (r"costs \$", "it costs $", True),
        (r"back\\$", "back\\", True),
        ("(?i)ERROR .*", "an error of some kind", True),
        ("", "x", None),
    ],
)
def test_a_pattern_has_to_end_with_the_line(pattern, line, fires):
    if fires is None:
        with pytest.raises(FileRefused, match=r'rules\[0\]\.pattern: ""'):
            judge_of(pattern)
    else:
        assert bool(feed(judge_of(pattern), line)) is fires


def test_a_record_of_several_lines_counts_as_several():
    record = "good\nbad one\nend"
    assert feed(judge_of("bad .*"), record) == [("Rule0", record.replace("\n", " "))]
    assert feed(judge_of(r"good\nbad [^\n]*"), record) == [("Rule0", "good bad one")]


def test_a_pattern_over_lines_finds_them_and_tells_them_whole():
    judge = judge_of(r"call trace:\n.*nfs_wait")
    assert feed(judge, "other", "INFO: call trace:", "  ? nfs_wait ", "nfs_wait") == [
        ("Rule0", "INFO: call trace: ? nfs_wait")
    ]


def test_no_more_lines_count_than_the_buffer_has():
    for size, fires in ((3, True), (2, False)):
        judge = judge_of(r"first[\s\S]*third", bufferSize=size)
        assert bool(feed(judge, "first", "second", "third")) is fires


def test_each_file_has_a_buffer_of_its_own_length():
    short = to_rows(read_log_monitor(monitor(r"first\n.*\nthird", bufferSize=2)), "a.json")
    long = to_rows(read_log_monitor(monitor({"reason": "Long", "pattern": r"first\n.*\nthird"})), "b.json")
    judge = KernelLogJudge(Catalogue({}, {}, short + long), clock=lambda: START)
    assert [reason for reason, _ in feed(judge, "first", "second", "third")] == ["Long"]


def test_a_restart_between_two_lines_changes_nothing():
    judge = judge_of(r"first\nsecond")
    feed(judge, "first")
    saved = msgspec.json.decode(msgspec.json.encode(judge.state()))
    again = judge_of(r"first\nsecond")
    assert again.restore(saved) == ""
    assert feed(again, "second") == [("Rule0", "first second")]
    assert feed(judge_of(r"first\nsecond"), "second") == []


def test_a_state_from_before_there_were_such_rows_is_taken():
    judge = judge_of("x")
    saved = msgspec.to_builtins(judge.state())
    del saved["recent"]
    assert judge.restore(saved) == ""


def test_a_line_of_any_length_is_remembered_by_its_end():
    judge = judge_of(r"end\nnext")
    feed(judge, "x" * 100_000 + "end")
    assert len(judge.state().recent[-1]) == 8192
    assert len(feed(judge, "next")) == 1


def test_lines_cost_nothing_where_no_rule_reaches_over_them():
    assert not judge_of("plain .*").interesting(b"nothing of interest")
    assert judge_of("(?s)a.*b").interesting(b"nothing of interest")


LINES = (
    "alpha gamma",
    "beta gamma",
    "abort now",
    "only line",
    "first",
    "second ",
    "line one",
    "  alpha",
    "beta",
    "task docker:1234 blocked for more than 120 seconds.",
    "EXT4-fs error (device sda1): ext4_find_entry:1455: inode #2",
    "mce: [Hardware Error]: event severity: fatal",
    "Killed process 1234 (mysqld) total-vm:100kB, anon-rss:20kB, file-rss:3kB",
    "x",
)
PATTERNS = (
    r"Killed process \d+ (.+) total-vm:\d+kB, anon-rss:\d+kB, file-rss:\d+kB.*",
    r"task [\S ]+:\w+ blocked for more than \w+ seconds\.",
    r"EXT4-fs error .*",
    r".*\[Hardware Error\]: event severity: fatal$",
    r"(?s)first.*second",
    r"^only line",
    r"(?m)^line \w+$",
    r"alpha\nbeta",
    r"alpha[\s\S]*beta",
    r"alpha[\x00-\x7f]+beta",
    "alpha[\t-\r]+beta",
    r"alpha[\t-\r]beta",
    r"\Aalpha",
    r"alpha|beta",
    r"alpha|",
    r"\balpha\b",
    r"alpha$",
    r"a*",
    r"(alpha|beta) gamma",
    r"[^x]+",
    r"[[:space:]]beta",
    r"[[:^alpha:]]x",
    r"\Wx",
    r"\D+second",
    r"a\P{L}b",
    r"(?U)(?i)AB.+",
    r"a\012b",
)


def reference(pattern: str, buffer: list[str]) -> bool:
    """What node-problem-detector does: the last lines, trimmed, joined, a match that ends with them."""
    return re2.search(rf"(?:{pattern})\z", "\n".join(buffer)) is not None


@pytest.mark.parametrize("size", [1, 2, 3, 10])
@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_rule_fires_exactly_where_node_problem_detectors_does(pattern, size):
    chance = random.Random(size)
    for _ in range(6):
        judge, buffer = judge_of(pattern, bufferSize=size), [""] * size
        for _ in range(2 * size + 4):
            text = chance.choice(LINES)
            buffer = [*buffer, text.strip()][-size:]
            judge.forget("*")  # each line is judged for itself
            assert bool(feed(judge, text)) is reference(pattern, buffer), (buffer, pattern)


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.sampled_from([*"ab.*+?|()[]^$-\\xsSwWdDnAzbt", "(?s)", "(?m)", "[^a]", "\n", "a-", "\\n"]), max_size=8),
    st.text("ab x", max_size=6),
)
def test_no_pattern_that_hangs_on_earlier_lines_is_taken_for_one_that_does_not(parts, line):
    pattern = "".join(parts)
    try:
        re2.compile(f"(?:{pattern})\\z")
    except re2.error:
        return
    if not reaches_over_lines(pattern):
        assert reference(pattern, ["b x", "", line]) is reference(pattern, [line])


# ---- files ---------------------------------------------------------------------------------------------------------

BAD = [
    (monitor("("), 'rules[0].pattern: "(": missing ): '),
    (monitor("(?=x)"), "RE2 syntax"),
    (
        monitor({"pattern": "x", "type": "permanent"}),
        'rules[0].condition: "": ',
    ),
    (
        monitor({"pattern": "x", "type": "fatal"}),
        "rules[0].type: \"fatal\": Input should be 'temporary' or 'permanent'",
    ),
    (monitor({"pattern": None}), "rules[0].pattern: missing"),
    (monitor(), "rules: []: List should have at least 1 item"),
    (monitor("x", bufferSize=-1), "bufferSize: -1: "),
    (monitor("a\nb", bufferSize=500), "bufferSize: 500: "),
    (monitor("x", lookback="soon"), 'lookback: "soon": '),
    (monitor("x", delay=5), "delay: 5: "),
    (monitor("x", pluginConfig={"source": 5}), "pluginConfig.source: 5: Input should be a valid string"),
    (monitor(*[{"pattern": "(?:x{300}y{300}){1}"}] * 20), "rules: "),
]


@pytest.mark.parametrize(("document", "told"), BAD, ids=range(len(BAD)))
def test_a_bad_file_names_key_value_and_what_is_allowed(document, told):
    with pytest.raises(FileRefused) as caught:
        to_rows(read_log_monitor(document), "mine.json")
    assert told in str(caught.value)


@pytest.mark.parametrize(
    ("document", "told"),
    [
        (monitor("("), "mine.json: rules[0].pattern: "),
        (monitor("x", plugin="filelog"), 'mine.json: plugin: "filelog": '),
        (monitor("x", plugin="journald", pluginConfig={"source": "kubelet"}), "mine.json: "),
        (monitor("x", plugin="custom"), "mine.json: plugin: \"custom\": Input should be 'kmsg', 'journald'"),
        ([], "mine.json: []: Input should be a valid dictionary"),
    ],
)
def test_a_file_that_is_no_kernel_monitors_is_no_catalogue(document, told, tmp_path):
    path = tmp_path / "mine.json"
    path.write_bytes(msgspec.json.encode(document))
    with pytest.raises(CatalogueError) as caught:
        load_catalogue(path)
    assert told in str(caught.value)


def test_the_kernels_entries_in_the_journal_are_the_kernel_log(tmp_path):
    path = tmp_path / "mine.json"
    path.write_bytes(msgspec.json.encode(monitor("x", plugin="journald", pluginConfig={"source": "kernel"})))
    assert load_catalogue(path).rows[-1].name == "Rule0"


def test_a_folder_may_hold_rows_of_ours_too_and_a_broken_file_in_it_is_named(tmp_path):
    rules = ({"reason": "Mine", "pattern": "x"}, {"reason": "OOMKilling", "pattern": "x"})
    (tmp_path / "a.json").write_bytes(msgspec.json.encode(monitor(*rules)))
    (tmp_path / "b.yaml").write_text("rows: [{name: OOMKilling, verdict: PASS}]")
    (tmp_path / ".hidden.yaml").write_text("rubbish: [")
    (tmp_path / "notes.txt").write_text("not looked at")
    rows = [(row.name, row.verdict) for row in load_catalogue(tmp_path).rows if row.name in ("OOMKilling", "Mine")]
    assert rows == [("OOMKilling", Verdict.PASS), ("Mine", Verdict.WARN), ("OOMKilling", Verdict.WARN)]
    (tmp_path / "c.json").write_text("{")
    with pytest.raises(CatalogueError, match=r"c\.json: .*JSON"):
        load_catalogue(tmp_path)


def test_shipped_rows_and_files_together_stay_within_what_one_scan_can_look_for(tmp_path):
    many = [{"pattern": f"(?:x{{300}}y{{300}}){number}"} for number in range(10)]
    (tmp_path / "a.json").write_bytes(msgspec.json.encode(monitor(*many)))
    (tmp_path / "b.json").write_bytes(msgspec.json.encode(monitor(*many)))
    (tmp_path / "c.json").write_bytes(msgspec.json.encode(monitor(*many)))
    with pytest.raises(CatalogueError, match=r"c\.json: .*\b\d+ RE2\b"):
        load_catalogue(tmp_path)


def test_a_real_file_with_any_value_in_it_is_read_or_refused(samples):
    document = msgspec.json.decode((samples / "npd/read-only.json").read_bytes())
    for changed in replaced(document):
        try:
            to_rows(read_log_monitor(changed), "x")
        except FileRefused as error:
            assert str(error)  # noqa: PT017 - both outcomes are right


@settings(max_examples=100, deadline=None)
@given(any_json())
def test_any_json_is_refused(document):
    for given_ in (document, {"plugin": "kmsg", "rules": document}, {"plugin": "kmsg", "rules": [document]}):
        with pytest.raises(FileRefused):
            read_log_monitor(given_)
