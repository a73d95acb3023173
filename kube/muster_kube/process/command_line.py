"""What the command lines of all parts share. Only argparse is imported until the arguments are valid."""

import argparse
import sys
from collections.abc import Callable
from typing import NoReturn

# exit codes of monitoring plug-ins, and EX_USAGE of sysexits.h: argparse exits with 2, which means FAIL here
EXIT_FAILED = 1
EXIT_UNKNOWN = 3
EXIT_USAGE = 64


class Parser(argparse.ArgumentParser):
    """An argparse parser whose usage errors begin with ``muster:`` and exit with EXIT_USAGE."""

    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(EXIT_USAGE, f"muster: {message}\n")


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
    """Run a part started with ``python -m PACKAGE`` instead of through the `muster` command."""
    parser = Parser(prog=prog, description=description)
    add_arguments(parser)
    sys.exit(main(parser.parse_args()))


def print_error(error: object) -> None:
    """Print an error to stderr; each of its lines begins with ``muster:``."""
    for line in str(error).splitlines():
        print(f"muster: {line}", file=sys.stderr)
