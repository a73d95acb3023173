"""`muster checks`: lists all checks with their parameters."""

import argparse
import sys
from pathlib import Path

from muster_checks.base.declaration import Check
from muster_checks.registry import load_registry
from muster_cli.report.output_format import TABLE, add_output, print_document


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--plugins", type=Path, metavar="DIR", help="directory of plug-in checks, see docs/plugins.md")
    add_output(parser)


def main(arguments: argparse.Namespace) -> int:
    broken: dict[str, str] = {}
    declared = sorted(load_registry(None, broken, arguments.plugins).values(), key=lambda check: check.name)
    for name, why in broken.items():
        print(f"muster: plug-in {name} was not loaded: {why}", file=sys.stderr)
    if arguments.output != TABLE:
        print_document([_document(check) for check in declared], arguments.output)
        return 0
    for check in declared:
        print(f"{check.name}  ({check.cost.value}, {_schedule(check)})\n    {check.description}")
        for name, field in check.parameters.model_fields.items():
            default = "" if field.is_required() else f" [{field.default}]"
            print(f"      {name}{default}  {field.description or ''}".rstrip())
    return 0


def _schedule(check: Check) -> str:
    when = f"every {check.period_s:g} s" if check.period_s else "on request" if check.probe else "continuous"
    return when if check.enabled else f"{when}, off by default"


def _document(check: Check) -> dict[str, object]:
    return {
        "name": check.name,
        "description": check.description,
        "cost": check.cost.value,
        "enabled": check.enabled,
        "periodS": check.period_s,
        "timeoutS": check.timeout_s,
        "devices": list(check.devices),
        "parameters": check.parameters.model_json_schema().get("properties", {}),
    }
