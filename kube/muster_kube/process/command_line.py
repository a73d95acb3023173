"""What the command lines of all parts have in common. Only argparse is loaded until the arguments are known good."""

import argparse
import sys
from collections.abc import Callable
from typing import NoReturn

# of monitoring plug-ins, and sysexits.h's EX_USAGE: argparse's own, 2, means FAIL here
EXIT_FAILED = 1
EXIT_UNKNOWN = 3
EXIT_USAGE = 64


class Parser(argparse.ArgumentParser):
    """argparse with the usage error code of all of Muster's programs."""

    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(EXIT_USAGE, f"{self.prog}: {message}\n")


def add_log_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of the settings ``log_format`` and ``log_level`` (logs.LogFormat, logs.LogLevel)."""
    parser.add_argument("--log-format", choices=("text", "json"), help="format of log lines (default text)")
    parser.add_argument(
        "--log-level",
        choices=("debug", "info", "warning", "error"),
        help="log only messages of this level and above (default info)",
    )


def run_part(
    prog: str,
    description: str,
    add_arguments: Callable[[argparse.ArgumentParser], None],
    main: Callable[[argparse.Namespace], int],
) -> NoReturn:
    """As ``python -m`` of the part's package, without the command `muster` before it."""
    parser = Parser(prog=prog, description=description)
    add_arguments(parser)
    sys.exit(main(parser.parse_args()))
