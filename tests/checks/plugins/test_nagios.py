"""Nagios plug-ins, real ones: exit codes, text, figures, and files that are refused."""

import errno
import os

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.checks.bad_input import TEXTS, any_json
from tests.wording.facts import missing_facts

from muster_checks.base.commands import Output
from muster_checks.base.execution import run_probe
from muster_checks.base.npd_json import FILE_BYTES, FileRefused
from muster_checks.plugins.nagios import NagiosFile, judge, nagios_check, read_nagios
from muster_checks.testing.recorded import RecordedCommands, node


@pytest.fixture
def write(bench):
    def write_file(**form: object):
        path = bench.folder / "plugin.yaml"
        path.write_text(yaml.safe_dump({"kind": "nagios", "name": "disk", "command": ["./plugin.sh"], **form}))
        return path

    return write_file


@pytest.fixture
def run(bench, write):
    """The result of a plug-in that is the shell script ``text``: ``await run(text, **form)``."""

    async def once(text: str, **form: object):
        bench.script("plugin.sh", text)
        check = nagios_check(read_nagios(write(**form)), bench.folder)
        return await run_probe(check, bench.node, check.parameters())

    return once


@pytest.mark.parametrize(
    ("code", "verdict"), [(0, "PASS"), (1, "WARN"), (2, "FAIL"), (3, "UNKNOWN"), (4, "UNKNOWN"), (127, "UNKNOWN")]
)
async def test_the_exit_code_is_the_verdict(code, verdict, run):
    result = await run(f"echo 'DISK: 19% | /=13892MB;13774;15496'; exit {code}", **{"class": "contact"})
    (finding,) = result.findings
    assert (result.verdict, finding.component, finding.reason) == (verdict, "host", "Disk")
    assert "DISK: 19%" in finding.message
    assert code < 4 or missing_facts(finding.message, "plugin.sh", str(code)) == []
    assert finding.fault_class == ("contact" if verdict == "FAIL" else "")
    (figure,) = finding.measurements
    assert (figure.name, figure.value, figure.unit) == ("/", 13892, "MB")
    assert figure.threshold == (13774 if verdict == "WARN" else 15496)


async def test_the_first_line_is_the_message_and_all_figures_count(run):
    (finding,) = (await run("printf 'OK - two | a=1\\nlong text\\nmore | b=2\\nc=3\\n'")).findings
    assert finding.message == "OK - two"
    assert [m.name for m in finding.measurements] == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("text", "verdict", "facts"),
    [
        ("exit 0", "PASS", ["OK"]),
        ("exit 2", "FAIL", ["plugin.sh", "2"]),
        ("echo broken >&2; exit 2", "FAIL", ["plugin.sh", "2", "broken"]),
        ("echo said; kill -9 $$", "UNKNOWN", ["plugin.sh", "SIGKILL", "said"]),
        ("head -c 2000000 /dev/zero | tr '\\0' x; exit 1", "WARN", ["x" * 253 + "…"]),
    ],
)
async def test_a_plug_in_that_says_little_or_too_much(text, verdict, facts, run):
    result = await run(text)
    assert result.verdict == verdict
    assert missing_facts(result.findings[0].message, *facts) == []


async def test_one_that_hangs_is_unknown(run):
    result = await run("sleep 60 & sleep 60", timeout_s=0.3)
    assert result.verdict == "UNKNOWN"
    assert missing_facts(result.message, "plugin.sh", "0 s") == []


async def test_one_that_is_not_there_is_unknown_and_says_what_to_install(bench, write):
    check = nagios_check(read_nagios(write(command=["check_nowhere"])), bench.folder)
    result = await run_probe(check, bench.node, check.parameters())
    assert (result.verdict, result.reason) == ("UNKNOWN", "ToolMissing")
    assert missing_facts(result.message, "check_nowhere") == []


async def test_one_that_cannot_be_started_is_unknown(bench, write):
    (bench.folder / "plugin.sh").mkdir()
    check = nagios_check(read_nagios(write()), bench.folder)
    result = await run_probe(check, bench.node, check.parameters())
    assert result.verdict == "UNKNOWN"
    assert "Permission denied" in result.message


async def test_a_command_on_the_path_is_called_as_it_is_written(bench, write, tmp_path):
    check = nagios_check(read_nagios(write(command=["check_disk", "-w", "20%", "$HOME"])), bench.folder)
    place = node(tmp_path, {"check_disk": "DISK OK"})
    assert (await run_probe(check, place, check.parameters())).verdict == "PASS"
    assert isinstance(place.commands, RecordedCommands)
    assert place.commands.calls == [(("check_disk", "-w", "20%", "$HOME"), 10.0)]


def test_a_file_says_how_often_and_how_dear(write, bench):
    form = read_nagios(write(cost="heavy", period_s=3600, timeout_s=120, component="disk/sda"))
    check = nagios_check(form, bench.folder)
    assert (check.name, check.cost, check.period_s, check.devices) == ("disk", "heavy", 3600.0, ("disk",))
    assert check.timeout_s == 123.0


BAD = [
    ({"kind": "other"}, "kind: \"other\": Input should be 'nagios'"),
    ({"name": "My Disk"}, 'name: "My Disk": String should match pattern'),
    ({"name": 5}, "name: 5: Input should be a valid string"),
    ({"command": "check_disk -w 20%"}, 'command: "check_disk -w 20%": Input should be a valid list'),
    ({"command": []}, "command: []: List should have at least 1 item"),
    ({"command": ["x", 5]}, "command[1]: 5: Input should be a valid string"),
    ({"command": ["a\x00b"]}, 'command[0]: "a\\u0000b": '),
    ({"cost": "cheap"}, "cost: \"cheap\": Input should be 'light' or 'heavy'"),
    ({"period_s": 0}, "period_s: 0: Input should be greater than or equal to 1"),
    ({"period_s": "60"}, 'period_s: "60": Input should be a valid number'),
    ({"timeout_s": float("inf")}, "timeout_s: Infinity: Input should be"),
    ({"component": "some where"}, 'component: "some where": String should match pattern'),
    ({"class": "explode"}, 'class: "explode": Input should be'),
    ({"colour": "red"}, "colour: "),
]


@pytest.mark.parametrize(("form", "told"), BAD, ids=range(len(BAD)))
def test_a_bad_file_names_key_value_and_what_is_allowed(form, told, write):
    with pytest.raises(FileRefused) as caught:
        read_nagios(write(**form))
    assert told in str(caught.value)


@pytest.mark.parametrize(
    "text", [*TEXTS, b"kind: nagios", b"- kind: nagios", b"a: [", b"!!python/object:os.system {}", b"&a [*a]"]
)
def test_a_file_that_is_none_is_refused(text, bench):
    path = bench.folder / "x.yaml"
    path.write_bytes(text)
    with pytest.raises(FileRefused):
        read_nagios(path)


def test_a_file_that_cannot_be_read_says_why(bench):
    with pytest.raises(FileRefused):
        read_nagios(bench.folder)
    with pytest.raises(FileRefused, match=os.strerror(errno.ENAMETOOLONG)):
        read_nagios(bench.folder / ("x" * 300))
    long = bench.folder / "long.yaml"
    long.write_bytes(b"#" * (FILE_BYTES + 1))
    with pytest.raises(FileRefused, match=r"\b1 MiB\b"):
        read_nagios(long)


@settings(max_examples=100, deadline=None)
@given(document=any_json())
def test_any_document_is_a_form_or_refused(document, tmp_path_factory):
    path = tmp_path_factory.getbasetemp() / "any.yaml"
    path.write_text(yaml.safe_dump(document))
    with pytest.raises(FileRefused):
        read_nagios(path)


FORM = NagiosFile.model_validate({"kind": "nagios", "name": "x", "command": ["x"]})


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=300), st.integers(-64, 255) | st.none())
def test_any_output_is_a_verdict_and_only_2_fails(stdout, code):
    finding = judge(FORM, Output(argv=("x",), exit_code=code, stdout=stdout))
    assert (finding.verdict == "FAIL") is (code == 2)
    assert len(finding.message.encode()) <= 256
