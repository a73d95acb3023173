"""`muster completion bash|zsh|fish`: prints a completion script, which shtab generates from the argparse parsers.

The script is static: after installing a plug-in check, generate it again. Parameters (`--set`) complete as
``CHECK.PARAMETER=``.
"""

import argparse

SHELLS = ("bash", "zsh", "fish")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Load the script in the startup file of your shell:\n\n"
        "  bash, in ~/.bashrc:                source <(muster completion bash)\n"
        '  zsh, in ~/.zshrc, after compinit:  eval "$(muster completion zsh)"\n'
        "  fish, in config.fish:              muster completion fish | source"
    )
    parser.add_argument("shell", choices=SHELLS, help="the shell that will load the script")


def main(arguments: argparse.Namespace) -> int:
    print(completion_script(arguments.shell))
    return 0


def completion_script(shell: str) -> str:
    import shtab

    from muster_checks.registry import load_registry
    from muster_cli.command_table import COMMANDS, whole_parser

    checks = load_registry(None, {})
    names = _completer("_muster_check_names", ["all", *sorted(checks)])
    parameters = _completer(
        "_muster_parameters",
        sorted(f"{check.name}.{field}=" for check in checks.values() for field in check.parameters.model_fields),
    )
    parser, subparsers = whole_parser()
    for name, subparser in subparsers.items():
        subparser.description = COMMANDS[name].summary  # shown beside the name of the command
        _set_completers(subparser, names, parameters)
    script: str = shtab.complete(parser, shell)
    return script


Completer = dict[str, str | dict[str, str]]


def _completer(name: str, words: list[str]) -> Completer:
    """Completes to one of ``words``; in bash by a function, which shtab calls with the text to complete."""
    joined = " ".join(words)
    function = f"{name}() {{ compgen -W '{joined}' -- \"$1\"; }}"
    return {"bash": name, "zsh": f"({joined})", "fish": joined, "preamble": {"bash": function}}


def _set_completers(parser: argparse.ArgumentParser, names: Completer, parameters: Completer) -> None:
    """Tell shtab what each argument takes, by its type and its metavar."""
    from pathlib import Path

    import shtab

    for action in parser._actions:  # argparse has no public list of them
        if isinstance(action, argparse._SubParsersAction):
            for each in set(action.choices.values()):
                _set_completers(each, names, parameters)
            continue
        completer: object = None
        if action.dest == "check" or (action.dest == "names" and parser.prog == "muster check"):
            completer = names
        elif action.metavar == "[CHECK.]PARAMETER=VALUE":
            completer = parameters
        elif action.metavar == "DIR":
            completer = shtab.DIRECTORY
        elif action.type is Path or action.metavar in ("FILE", "[NODE=]FILE"):
            completer = shtab.FILE
        if completer is not None:
            action.complete = completer  # type: ignore[attr-defined] # shtab's own attribute
