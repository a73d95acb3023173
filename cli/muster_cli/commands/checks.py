"""`muster checks`: the checks there are, with their parameters."""

import argparse
import json
import sys
from pathlib import Path

from muster_checks.registry import load_registry


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="as a JSON list")
    parser.add_argument("--plugins", type=Path, metavar="DIR", help="a folder of plug-ins, see docs/plugins.md")


def main(arguments: argparse.Namespace) -> int:
    broken: dict[str, str] = {}
    declared = sorted(load_registry(None, broken, arguments.plugins).values(), key=lambda check: check.name)
    for name, why in broken.items():
        print(f"muster: {name} is left out: {why}", file=sys.stderr)
    if arguments.json:
        print(
            json.dumps(
                [
                    {
                        "name": check.name,
                        "description": check.description,
                        "cost": check.cost.value,
                        "periodS": check.period_s,
                        "timeoutS": check.timeout_s,
                        "devices": list(check.devices),
                        "parameters": check.parameters.model_json_schema().get("properties", {}),
                    }
                    for check in declared
                ],
                indent=2,
            )
        )
        return 0
    for check in declared:
        rhythm = f"every {check.period_s:g} s" if check.period_s else "when asked" if check.probe else "always on"
        print(f"{check.name}  ({check.cost.value}, {rhythm})\n    {check.description}")
        for name, field in check.parameters.model_fields.items():
            default = "" if field.is_required() else f" [{field.default}]"
            print(f"      {name}{default}  {field.description or ''}".rstrip())
    return 0
