"""Common to all command lines. Loads only argparse until the arguments have been checked."""

import argparse
import sys
from collections.abc import Callable
from typing import NoReturn

# exit codes of monitoring plug-ins, and EX_USAGE of sysexits.h: argparse's own code, 2, means FAIL here
EXIT_FAILED = 1
EXIT_UNKNOWN = 3
EXIT_USAGE = 64


class Parser(argparse.ArgumentParser):
    """argparse with Muster's exit code for usage errors."""

    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(EXIT_USAGE, f"{self.prog}: {message}\n")


def run_part(
    prog: str,
    description: str,
    add_arguments: Callable[[argparse.ArgumentParser], None],
    main: Callable[[argparse.Namespace], int],
) -> NoReturn:
    """Run a component by ``python -m PACKAGE``, without the command `muster`."""
    parser = Parser(prog=prog, description=description)
    add_arguments(parser)
    sys.exit(main(parser.parse_args()))
