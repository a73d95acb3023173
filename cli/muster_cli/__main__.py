"""`muster COMMAND …`: imports the module of the command and runs it. docs/commands.md has the table of exit codes."""

import os
import sys
from collections.abc import Sequence

from muster_cli.command_table import COMMANDS, command_parser, overview
from muster_cli.exit_codes import EXIT_INTERRUPTED, EXIT_NO_READER
from muster_kube.process.command_line import EXIT_USAGE


def main(argv: Sequence[str] | None = None) -> int:
    words = list(sys.argv[1:] if argv is None else argv)
    if not words:
        print(overview(), file=sys.stderr)
        return EXIT_USAGE
    if words[0] in ("-h", "--help", "help"):
        print(overview())
        return 0
    if words[0] == "--version":
        from importlib.metadata import version

        print(f"muster {version('passmuster')}")
        return 0
    if words[0] not in COMMANDS:
        from muster_checks.base.unknown_names import explain_unknown

        error = explain_unknown("command", words[0], COMMANDS, 'run "muster --help" to list all commands')
        print(f"muster: {error}", file=sys.stderr)
        return EXIT_USAGE
    try:
        parser, module = command_parser(words[0])
        code: int = module.main(parser.parse_args(words[1:]))
        sys.stdout.flush()
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # the reader has closed the pipe (`| head -1`); without this the interpreter's last flush fails once more
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_NO_READER
    return code


if __name__ == "__main__":
    sys.exit(main())
