"""The flag ``-o``: a table for people, or JSON or YAML for programs."""

import argparse
from typing import Any

import msgspec

TABLE, JSON, YAML = "table", "json", "yaml"


def add_output(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-o",
        "--output",
        choices=(TABLE, JSON, YAML),
        default=TABLE,
        help="output format; default: table",
    )
    parser.add_argument("--json", dest="output", action="store_const", const=JSON, help="the same as -o json")


def print_document(document: object, output: str) -> None:
    """``document``: anything that msgspec encodes. output: JSON or YAML."""
    built: Any = msgspec.to_builtins(document)
    if output == YAML:
        import yaml

        print(yaml.safe_dump(built, sort_keys=False, allow_unicode=True), end="")
    else:
        print(msgspec.json.format(msgspec.json.encode(built)).decode())
