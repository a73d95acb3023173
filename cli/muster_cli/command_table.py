"""The table of all commands, and the argparse parser of each. A command's module is imported only when it is needed."""

import argparse
import importlib
import textwrap
from dataclasses import dataclass
from typing import Any

from muster_kube.process.command_line import Parser

NODE, CLUSTER, POLICY, SETUP, PARTS = (
    "Checks on this machine",
    "Nodes and jobs of a cluster",
    "Policies",
    "Installation and shell",
    "Parts of Muster (the chart or the operator starts them), and a V-IPU simulator",
)


@dataclass(frozen=True)
class Command:
    """A subcommand: its module has ``add_arguments(parser)`` and ``main(arguments) -> int``.

    exits: its exit codes, for the help; empty: only 0 and 64 (docs/commands.md has all).
    """

    module: str
    group: str
    summary: str
    example: str
    exits: str = ""


_BY_VERDICT = "2 if a verdict is FAIL, else 1 if one is WARN, else 3 if one is UNKNOWN, else 0"
_NOT_REACHED = "3 if the cluster or a node cannot be reached or does not exist; 64 on a usage error."
_NO_CLUSTER = "3 if the cluster cannot be reached; 64 on a usage error."
_OF_A_PART = (
    "0 after SIGTERM or Ctrl-C; 1 if a task has ended unexpectedly (see the log); 3 if it cannot listen on its port; "
    "64 if a flag or setting is not valid."
)


COMMANDS = {
    "check": Command(
        "muster_cli.commands.check",
        NODE,
        "run checks on this machine, or judge a recorded log or tool output",
        "muster check gpucount gpuecc --details",
        f"{_BY_VERDICT}; 64 on a usage error.",
    ),
    "checks": Command("muster_cli.commands.checks", NODE, "list all checks and their parameters", "muster checks"),
    "status": Command(
        "muster_cli.commands.status",
        CLUSTER,
        "show the health of the fleet or of single nodes; starts no check",
        "muster status --watch",
        f"{_BY_VERDICT} (of all nodes, or of those named). Also {_NOT_REACHED}",
    ),
    "run": Command(
        "muster_cli.commands.run",
        CLUSTER,
        "run checks now, on all nodes or on the nodes you name",
        "muster run node-1 node-2 --check pciebw,dcgm",
        f"{_BY_VERDICT}. A node that does not answer is UNKNOWN. 3 also if no agent answers; 64 on a usage error.",
    ),
    "explain": Command(
        "muster_cli.commands.explain",
        CLUSTER,
        "explain why a node is tainted or not, or what happened to an IPUJob",
        "muster explain node-1",
        f"{_BY_VERDICT} (of the nodes). For an IPUJob: 2 if it has failed, else 1 if it is restarting or runs on "
        f"faulty hardware, else 0. Also {_NOT_REACHED}",
    ),
    "goodput": Command(
        "muster_cli.commands.goodput",
        CLUSTER,
        "show what the accelerator-hours of the cluster were used for or lost to: work, faults, tests, drains",
        "muster goodput --since 7d --by team",
        f"0; 3 if the tainter keeps no record, or it cannot be read. Also {_NO_CLUSTER}",
    ),
    "stragglers": Command(
        "muster_cli.stragglers.command",
        CLUSTER,
        "name the rank that slows a job, from recorded times of its steps; needs no cluster",
        "muster stragglers steps-*.csv --plot steps.svg",
        "0 if the verdict is nobody; 1 if it is stage or data; 2 if it is node; 64 if a file is not valid or cannot be "
        "read, or on another usage error.",
    ),
    "clear": Command(
        "muster_cli.commands.clear",
        CLUSTER,
        "close the faults of a node that you have repaired",
        "muster clear node-1 --check dmesg",
        f"0 if the faults are closed, or there were none; 3 if one could not be closed. Also {_NOT_REACHED}",
    ),
    "pause": Command(
        "muster_cli.commands.pause",
        CLUSTER,
        "stop new taints, drains and repairs; recovery continues",
        'muster pause --reason "switch replacement in row 4"',
        f"0 if Muster is paused now; {_NO_CLUSTER}",
    ),
    "resume": Command(
        "muster_cli.commands.resume",
        CLUSTER,
        "end a pause",
        "muster resume",
        f"0 if Muster is no longer paused; {_NO_CLUSTER}",
    ),
    "release": Command(
        "muster_cli.release.command",
        CLUSTER,
        "close all faults of nodes and remove Muster's taints",
        "muster release node-1 node-2",
        f"0 if all are released, or there was nothing to release; 1 if you answered no; 3 if a node is not released. "
        f"Also {_NOT_REACHED}",
    ),
    "policy": Command(
        "muster_cli.commands.policy",
        POLICY,
        "validate a policy and show what it does with each possible finding",
        "muster policy check policy.yaml",
        "0 if the policy is valid; 1 if it is valid, but the output has warnings (probable mistakes; lines that begin "
        'with "warning:"); 64 if the tainter would reject it.',
    ),
    "replay": Command(
        "muster_cli.commands.replay",
        POLICY,
        "show what a policy would have tainted, from recorded logs; needs no cluster",
        "muster replay policy.yaml --log node-1.log node-2.log",
        "0; 64 if the policy, a log or a flag is not valid or cannot be read.",
    ),
    "simulate": Command(
        "muster_cli.simulate.command",
        POLICY,
        "show what policies would cost and save, on a simulated fleet with its faults and jobs",
        "muster simulate examples/policy.yaml --fleet examples/fleet.yaml --html result.html",
        "0; 3 if --from-cluster cannot read the cluster or Prometheus, or finds no recorded fault; 64 if a policy, the "
        "fleet, the faults, the jobs or a flag is not valid or cannot be read.",
    ),
    "doctor": Command(
        "muster_cli.doctor.command",
        SETUP,
        "find problems of the installation and show how to fix each",
        "muster doctor",
        "2 if something does not work (FAIL), else 1 if something needs attention (WARN), else 3 if something could "
        f"not be read (UNKNOWN), else 0. Also {_NO_CLUSTER}",
    ),
    "sandbox": Command(
        "muster_cli.sandbox.command",
        SETUP,
        "start a complete cluster on loopback to try Muster",
        "muster sandbox --simulated 7",
        "0 after Ctrl-C or --for, or if the action has succeeded; 3 if the sandbox cannot start or has failed, if "
        "none is running, or if the action has failed; 64 on a usage error.",
    ),
    "completion": Command(
        "muster_cli.commands.completion",
        SETUP,
        "print the completion script for bash, zsh or fish",
        "source <(muster completion bash)",
    ),
    "agent": Command(
        "muster_agent.__main__",
        PARTS,
        "start the agent of a node",
        "muster agent --config /etc/muster/agent.yaml",
        _OF_A_PART,
    ),
    "tainter": Command(
        "muster_tainter.__main__",
        PARTS,
        "start the tainter of a cluster",
        "muster tainter --policy policy.yaml --kubeconfig ~/.kube/config",
        _OF_A_PART,
    ),
    "operator": Command(
        "muster_operator.__main__",
        PARTS,
        "start the operator of IPUJobs",
        "muster operator --vipu-proxy http://127.0.0.1:8080 --proxy-token FILE",
        _OF_A_PART,
    ),
    "wait-workers": Command(
        "muster_operator.wait_workers",
        PARTS,
        "copy kubectl and wait for the workers (init container of an IPUJob's launcher)",
        "muster wait-workers --namespace team --job train --uid UID --workers 4 --kubectl-to /opt/kube",
        "0 if all workers are ready; 1 if one cannot become ready, or kubectl cannot be copied; 143 after SIGTERM.",
    ),
    "vipu-proxy": Command(
        "muster_operator.proxy.__main__",
        PARTS,
        "start the V-IPU proxy, which manages partitions for IPUJobs",
        "muster vipu-proxy --controllers vipu-1.example:8090:rack=1",
        _OF_A_PART,
    ),
    "vipu-sim": Command(
        "muster_operator.vipu.simulator.__main__",
        PARTS,
        "start a simulated V-IPU controller",
        "muster vipu-sim --state /tmp/vipu --ipus 16",
        _OF_A_PART,
    ),
}


class HelpFormatter(argparse.HelpFormatter):
    """Wraps paragraphs; keeps indented lines, such as examples, as they are."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        blocks = [
            block if block.startswith("  ") else textwrap.fill(block, width)
            for paragraph in text.split("\n\n")
            for block in _blocks(paragraph)
        ]
        return textwrap.indent("\n".join(blocks), indent)


def _blocks(paragraph: str) -> list[str]:
    """Indented lines one by one; all others joined."""
    blocks: list[str] = []
    for line in paragraph.splitlines():
        if blocks and not line.startswith("  ") and not blocks[-1].startswith("  "):
            blocks[-1] += f" {line}"
        else:
            blocks.append(line)
    return [*blocks, ""] if not blocks or not blocks[-1].startswith("  ") else blocks


def overview() -> str:
    width = max(map(len, COMMANDS))
    lines = ["usage: muster COMMAND [options]"]
    for group in (NODE, CLUSTER, POLICY, SETUP, PARTS):
        lines += ["", f"{group}:"]
        lines += [f"  {name:<{width}}  {each.summary}" for name, each in COMMANDS.items() if each.group == group]
    return "\n".join([*lines, "", 'Run "muster COMMAND --help" for the options and exit codes of a command.'])


def command_parser(name: str) -> tuple[Parser, Any]:
    """The parser of a command, and its module."""
    parser = Parser(prog=f"muster {name}")
    return parser, describe(parser, name)


def describe(parser: argparse.ArgumentParser, name: str) -> Any:
    """Add the summary, the example, the exit codes and the arguments of the command ``name`` to ``parser``. Returns its
    module.

    The description that a module sets follows the summary.
    """
    command = COMMANDS[name]
    module = importlib.import_module(command.module)
    parser.description = summary = f"{command.summary[0].upper()}{command.summary[1:]}."
    exits = f"Exit code: {command.exits}\n\n" if command.exits else ""
    parser.epilog = f"{exits}Example:\n  {command.example}"
    parser.formatter_class = HelpFormatter
    module.add_arguments(parser)
    if parser.description != summary:
        parser.description = f"{summary}\n\n{parser.description}"
    return module


def whole_parser() -> tuple[Parser, dict[str, Parser]]:
    """(one parser with all commands, the parser of each command): for completion scripts and the reference page.

    Imports every module.
    """
    root = Parser(prog="muster")
    root.add_argument("--version", action="store_true", help="print the version")
    commands = root.add_subparsers(metavar="COMMAND")
    parsers = {name: commands.add_parser(name, help=command.summary) for name, command in COMMANDS.items()}
    for name, parser in parsers.items():
        describe(parser, name)
    return root, parsers
