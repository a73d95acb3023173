"""The exit codes of all commands: those of monitoring plug-ins, and 64 for a usage error (EX_USAGE of sysexits.h)."""

from collections.abc import Iterable

from muster_checks.base.vocabulary import Verdict, worst
from muster_kube.process.command_line import EXIT_UNKNOWN, EXIT_USAGE

EXIT_OK, EXIT_WARN, EXIT_FAIL = 0, 1, 2
EXIT_INTERRUPTED = 128 + 2  # SIGINT, as shells report it
EXIT_NO_READER = 128 + 13  # SIGPIPE
EXIT_TERMINATED = 128 + 15  # SIGTERM

_CODES = {"PASS": EXIT_OK, "SKIP": EXIT_OK, "WARN": EXIT_WARN, "FAIL": EXIT_FAIL}

# for docs/commands.md
MEANINGS = {
    EXIT_OK: "OK: every verdict is PASS or SKIP, or the command has done its work.",
    EXIT_WARN: "WARN: the worst verdict is WARN, or another result that the section of the command names.",
    EXIT_FAIL: "FAIL: the worst verdict is FAIL, or another result that the section of the command names.",
    EXIT_UNKNOWN: "UNKNOWN: the cluster, an agent or the node could not be reached or does not exist, an object could "
    "not be written, or the worst verdict is UNKNOWN.",
    EXIT_USAGE: "Usage error: an unknown command, flag, check or parameter, or a file or setting that is not valid. "
    "Nothing was run or changed.",
    EXIT_INTERRUPTED: "The command was interrupted by Ctrl-C. Exceptions: `status --watch` ends with the code of the "
    "state that it showed last; `sandbox` and the parts of Muster named above end with 0.",
    EXIT_NO_READER: "The program that read the output has closed the pipe.",
    EXIT_TERMINATED: "The command was ended by SIGTERM; another signal N gives 128 + N. Exceptions: after SIGTERM, "
    "`sandbox` and the parts of Muster named above end with 0.",
}


def exit_code(verdict: str) -> int:
    """Of a verdict, also of one that was read from an object. A word that is no verdict counts as UNKNOWN."""
    return _CODES.get(verdict, EXIT_UNKNOWN)


def worst_exit_code(verdicts: Iterable[Verdict]) -> int:
    """FAIL outranks WARN, WARN outranks UNKNOWN, UNKNOWN outranks PASS."""
    return exit_code(worst(list(verdicts)))
