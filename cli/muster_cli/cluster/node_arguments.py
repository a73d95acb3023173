"""How commands take the names of nodes: ``NODE…``, or ``--host A,B`` as before."""

import argparse
import re

_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")  # RFC 1123
_NAME_LIMIT = 253


def node_name(text: str) -> str:
    """For argparse: a name that Kubernetes accepts for a Node."""
    if len(text) > _NAME_LIMIT or not _NAME.fullmatch(text):
        raise argparse.ArgumentTypeError(
            f"{text!r}: expected the name of a node: lower-case letters, digits, '-' and '.', at most {_NAME_LIMIT}"
        )
    return text


def _node_names(text: str) -> list[str]:
    names = [node_name(name) for part in text.split(",") if (name := part.strip())]
    if not names:
        raise argparse.ArgumentTypeError("expected the names of nodes, separated by commas")
    return names


def add_nodes(parser: argparse.ArgumentParser, help: str) -> None:
    parser.add_argument("nodes", metavar="NODE", nargs="*", type=node_name, help=help)
    add_host(parser)


def add_host(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--host", metavar="A,B", type=_node_names, action="extend", default=[], help="the same as NODE; may be repeated"
    )


def named_nodes(arguments: argparse.Namespace) -> list[str]:
    """All nodes that the command line names, each once, in that order."""
    return list(dict.fromkeys([*arguments.nodes, *arguments.host]))
