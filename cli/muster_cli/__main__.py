"""`muster COMMAND …`: one table of commands, each loaded only when it is called.

Exit codes are those of monitoring plug-ins: 0 PASS or SKIP, 1 WARN, 2 FAIL, 3 UNKNOWN; 64 is a usage error.
"""

import importlib
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from muster_kube.process.command_line import EXIT_USAGE, Parser

EXIT_INTERRUPTED = 130  # as shells have it: 128 + SIGINT
EXIT_NO_READER = 141  # 128 + SIGPIPE


@dataclass(frozen=True)
class Command:
    """A sub-command: its module has ``add_arguments(parser)`` and ``main(arguments) -> int``."""

    module: str
    summary: str


COMMANDS = {
    "check": Command("muster_cli.commands.check", "run checks on this machine, or on a recorded kernel log"),
    "checks": Command("muster_cli.commands.checks", "list the checks there are"),
    "run": Command("muster_cli.commands.run", "run checks on all nodes, or on chosen ones"),
    "status": Command("muster_cli.commands.status", "what the fleet, or one node, is known to be"),
    "explain": Command("muster_cli.commands.explain", "tell why a node is tainted, or is not"),
    "clear": Command("muster_cli.commands.clear", "close a node's faults by a person's word"),
    "pause": Command("muster_cli.commands.pause", "no new taint, drain or repair from now on; recovery goes on"),
    "resume": Command("muster_cli.commands.resume", "end a pause"),
    "release": Command("muster_cli.commands.release", "take everything of muster's off nodes, or off all"),
    "policy": Command("muster_cli.commands.policy", "check a policy, and what it does to each known fault"),
    "replay": Command(
        "muster_cli.commands.replay", "what a policy would have tainted, by recorded logs; needs no cluster"
    ),
    "doctor": Command("muster_cli.doctor.command", "what is wrong with the installation, and how to mend it"),
    "sandbox": Command("muster_cli.sandbox.command", "a whole cluster on loopback, to try things on"),
    "agent": Command("muster_agent.__main__", "start the agent of one node"),
    "tainter": Command("muster_tainter.__main__", "start the tainter of a cluster"),
    "operator": Command("muster_operator.__main__", "start the operator of IPUJobs"),
    "wait-workers": Command("muster_operator.wait_workers", "in a launcher: wait for its workers, and bring kubectl"),
    "vipu-proxy": Command("muster_operator.proxy.__main__", "start the V-IPU proxy: partitions for IPUJobs"),
    "vipu-sim": Command("muster_operator.vipu.simulator.__main__", "start a simulated V-IPU controller"),
}


def overview() -> str:
    width = max(map(len, COMMANDS))
    lines = [f"  {name:<{width}}  {command.summary}" for name, command in COMMANDS.items()]
    return "\n".join(["usage: muster COMMAND …", "", *lines, "", "muster COMMAND --help tells more."])


def main(argv: Sequence[str] | None = None) -> int:
    words = list(sys.argv[1:] if argv is None else argv)
    if not words or words[0] in ("-h", "--help", "help"):
        print(overview())
        return 0 if words else EXIT_USAGE
    if words[0] == "--version":
        from importlib.metadata import version

        print(f"muster {version('passmuster')}")
        return 0
    command = COMMANDS.get(words[0])
    if command is None:
        print(f"muster: no command {words[0]!r}; there are: {', '.join(COMMANDS)}", file=sys.stderr)
        return EXIT_USAGE
    try:
        module = importlib.import_module(command.module)
        parser = Parser(prog=f"muster {words[0]}", description=command.summary)
        module.add_arguments(parser)
        code: int = module.main(parser.parse_args(words[1:]))
        sys.stdout.flush()
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # whoever read has gone (`| head -1`); the interpreter's own last flush must not say so once more
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_NO_READER
    return code


if __name__ == "__main__":
    sys.exit(main())
