"""The reference of the command line (commands.md), from the argparse parsers and the table of exit codes."""

import argparse
import textwrap
from collections.abc import Iterator
from pathlib import Path

from muster_cli.command_table import CLUSTER, COMMANDS, NODE, PARTS, POLICY, SETUP, whole_parser
from muster_cli.exit_codes import MEANINGS

HERE = Path(__file__).parent
NOTE = "<!-- made by `make generate` from the code; edits are overwritten -->"
INTRODUCTION = """\
The flag `--help` of a command prints what its section says. Commands that work on nodes take their names as `NODE…`;
except for `release`, they also accept `--host A,B`. Commands for a cluster use the pod's service account if they run in
a pod, otherwise the kubeconfig that kubectl uses.

Tables fit the width of a terminal; written to a file or a pipe, each row is one full line. Colours appear only on a
terminal, and not if `NO_COLOR` is set. For programs, many commands have `--json`, and some also
`-o yaml`.""".splitlines()
COMPLETION = """\
The script completes commands, options, files, the names of checks and their parameters. Generate it again after you
have installed a plug-in check.

```text
bash, in ~/.bashrc:                 source <(muster completion bash)
zsh, in ~/.zshrc, after compinit:   eval "$(muster completion zsh)"
fish, in config.fish:               muster completion fish | source
```""".splitlines()
ERRORS = """\
This table holds for all commands, and for the parts of Muster that run until they are stopped: `agent`, `tainter`,
`operator`, `vipu-proxy` and `vipu-sim`. The codes 0 to 3 are those of Nagios plug-ins. Of several
verdicts the worst counts: FAIL, then WARN, then UNKNOWN, then PASS. Every error line on standard error begins with
`muster:`.""".splitlines()


def commands_page() -> dict[Path, str]:
    lines = ["# Commands", "", NOTE, "", *INTRODUCTION, "", "## Exit codes", "", *ERRORS, ""]
    lines += ["| code | meaning |", "|---|---|", *(f"| {code} | {meaning} |" for code, meaning in MEANINGS.items()), ""]
    lines += ["## Completion", "", *COMPLETION]
    _, parsers = whole_parser()
    for group in (NODE, CLUSTER, POLICY, SETUP, PARTS):
        lines += ["", f"## {group}"]
        for name, command in COMMANDS.items():
            if command.group == group:
                lines += _command(name, parsers[name], command.example)
    return {HERE / "commands.md": "\n".join(lines) + "\n"}


def _command(name: str, parser: argparse.ArgumentParser, example: str) -> Iterator[str]:
    yield from ("", f"### muster {name}", "", *_paragraphs(parser.description or ""), "```text", example, "```")
    yield from _arguments(parser)
    if COMMANDS[name].exits:
        yield from ("", *textwrap.wrap(f"Exit code: {_cell(COMMANDS[name].exits)}", 120))
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            helps = {each.dest: each.help or "" for each in action._choices_actions}
            for sub, subparser in action.choices.items():
                text = subparser.description or f"{helps.get(sub, '')}."
                yield from ("", f"`{name} {sub}`: {text[0].upper()}{text[1:]}")
                yield from _arguments(subparser)


def _paragraphs(text: str) -> Iterator[str]:
    for paragraph in text.strip().split("\n\n"):
        if "\n  " in f"\n{paragraph}":  # indented lines are typed or printed
            yield from ("```text", *textwrap.dedent(paragraph).splitlines(), "```", "")
        else:
            yield from (*textwrap.wrap(_cell(" ".join(paragraph.split())), 120), "")


def _arguments(parser: argparse.ArgumentParser) -> Iterator[str]:
    rows = []
    for action in parser._actions:
        if isinstance(action, argparse._HelpAction | argparse._SubParsersAction):
            continue
        words = ", ".join(f"`{word}`" for word in action.option_strings) or f"`{_value(action)}`"
        value = f" `{_value(action)}`" if action.option_strings and action.nargs != 0 else ""
        rows.append(f"| {words}{value} | {_cell(action.help or '')} |")
    if rows:
        yield from ("", "| argument | meaning |", "|---|---|", *rows)


def _value(action: argparse.Action) -> str:
    if action.choices is not None:
        return "\\|".join(map(str, action.choices))
    if isinstance(action.metavar, str):
        return action.metavar.replace("|", "\\|")
    return action.dest.upper() if action.option_strings else action.dest


def _cell(text: str) -> str:
    return text.replace("%%", "%").replace("|", "\\|").replace("<", "&lt;")
