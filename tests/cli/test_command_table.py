"""Every command has a help page with an example that its own parser accepts, and a section in docs/commands.md."""

import re
import shlex
from pathlib import Path

import pytest

from muster_cli.__main__ import main
from muster_cli.command_table import COMMANDS, command_parser
from muster_cli.exit_codes import MEANINGS
from muster_cli.report.colours import use_colour

PAGE = (Path(__file__).parents[2] / "docs" / "commands.md").read_text()


@pytest.mark.parametrize("name", COMMANDS)
def test_help_has_an_example_that_parses(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([name, "--help"])
    assert ended.value.code == 0
    assert f"Example:\n  {COMMANDS[name].example}\n" in capsys.readouterr().out
    inner = re.search(r"muster [^)]*", COMMANDS[name].example)
    assert inner is not None
    parser, _ = command_parser(name)
    parser.parse_args(shlex.split(inner.group())[2:])


@pytest.mark.parametrize("name", [name for name, command in COMMANDS.items() if command.exits])
def test_help_and_reference_page_have_the_exit_codes(name: str) -> None:
    for shown in (
        command_parser(name)[0].format_help(),
        PAGE.partition(f"### muster {name}\n")[2].partition("\n### ")[0],
    ):
        assert COMMANDS[name].exits in " ".join(shown.split())


def test_help_of_policy_has_the_arguments_of_its_action() -> None:
    shown = command_parser("policy")[0].format_help()
    assert all(word in shown for word in ("check", "FILE", "--catalogue", "--plugins", "--json"))


def test_help_of_the_sandbox_has_its_actions_and_needs_none() -> None:
    parser, _ = command_parser("sandbox")
    assert parser.parse_args([]).action is None
    shown = parser.format_help()
    assert "[ACTION]" in shown
    assert all(f"muster sandbox {action} " in shown for action in ("inject", "reboot", "pod"))


def test_the_reference_page_has_every_command_and_exit_code() -> None:
    assert re.findall(r"^### muster (\S+)$", PAGE, re.MULTILINE) == list(COMMANDS)
    assert [int(code) for code in re.findall(r"^\| (\d+) \|", PAGE, re.MULTILINE)] == sorted(MEANINGS)


@pytest.mark.parametrize(("typed", "meant"), [("stats", "status"), ("explian", "explain"), ("doktor", "doctor")])
def test_a_misspelled_command_gets_a_suggestion(typed: str, meant: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([typed]) == 64
    error = capsys.readouterr().err
    assert error.startswith("muster: ")
    assert f'"{meant}"' in error


@pytest.mark.parametrize("name", ["check", "run", "tainter", "vipu-sim"])
def test_errors_of_the_parser_begin_with_muster(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([name, "--bogus"])
    assert ended.value.code == 64
    usage, *_, error = capsys.readouterr().err.splitlines()
    assert usage.startswith("usage: ")
    assert error.startswith("muster: ")


def test_an_unreachable_cluster_is_unknown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from tests.cli.commands.test_run import kubeconfig

    file = kubeconfig(tmp_path, "http://127.0.0.1:1")
    for command in (["status"], ["explain", "a"], ["clear", "a"], ["doctor"], ["pause"], ["resume"], ["run"]):
        assert main([*command, "--kubeconfig", str(file)]) == 3
        errors = [line for line in capsys.readouterr().err.splitlines() if not line.startswith("sending ")]
        assert errors
        assert all(line.startswith("muster: ") for line in errors)


class _Terminal:
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("variables", "coloured"),
    [({}, True), ({"NO_COLOR": "1"}, False), ({"NO_COLOR": ""}, True), ({"TERM": "dumb"}, False)],
)
def test_colours_follow_the_terminal(
    variables: dict[str, str], coloured: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert use_colour(_Terminal()) is coloured  # type: ignore[arg-type]


@pytest.mark.parametrize("part", ["agent", "tainter"])
def test_errors_of_a_part_begin_with_muster(part: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text("bogus: 1\nport: many\n")
    assert main([part, "--config", str(file)]) == 64
    errors = capsys.readouterr().err.splitlines()
    assert len(errors) == 2
    assert all(line.startswith("muster: ") for line in errors)
