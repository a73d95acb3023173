"""`muster policy check FILE`: validates a policy and shows what it does with each possible finding."""

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from muster_checks.dmesg import DMESG
from muster_checks.dmesg.catalogue.loader import load_catalogue
from muster_checks.dmesg.catalogue.types import CatalogueError
from muster_checks.registry import load_registry
from muster_cli.exit_codes import EXIT_WARN
from muster_cli.report.columns import print_table
from muster_cli.report.policies.rows import ANY, PolicyRow, policy_rows, rule_outcome
from muster_cli.report.policies.warnings import find_notes, find_warnings
from muster_cli.report.quantities import format_duration
from muster_kube.process.command_line import EXIT_USAGE
from muster_tainter.policy.file import PolicyError, load_policy
from muster_tainter.policy.rules import Policy

_LOUDEST = ("drain", "taint", "quarantine", "event", "ignore", "nothing")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "muster policy check [options] FILE"
    parser.add_argument("action", choices=("check",), metavar="check", help="the only action")
    parser.add_argument("file", metavar="FILE", type=Path, help="policy file, or - for the built-in policy")
    parser.add_argument(
        "--catalogue", metavar="FILE", type=Path, help="YAML file of your own kernel messages, see docs/kernel-log.md"
    )
    parser.add_argument("--plugins", type=Path, metavar="DIR", help="directory of plug-in checks, see docs/plugins.md")
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def main(arguments: argparse.Namespace) -> int:
    try:
        policy = load_policy(None if str(arguments.file) == "-" else arguments.file)
        catalogue = load_catalogue(arguments.catalogue)
    except (PolicyError, CatalogueError) as error:
        print("\n".join(f"muster: {line}" for line in str(error).splitlines()), file=sys.stderr)
        return EXIT_USAGE
    checks = load_registry(None, {}, arguments.plugins)
    rows = policy_rows(policy, catalogue, checks)
    warnings, notes = list(find_warnings(policy, checks)), list(find_notes(policy))
    if arguments.json:
        document = {"rows": [row.document(policy) for row in rows], "warnings": warnings, "notes": notes}
        print(json.dumps(document, indent=2))
    else:
        _print(policy, rows)
        for line in warnings:
            print(f"warning: {line}")
        for line in notes:
            print(f"note: {line}")
    return EXIT_WARN if warnings else 0


def _print(policy: Policy, found: Sequence[PolicyRow]) -> None:
    every = {row.check for row in found if row.reason == ANY and row.component.partition("/")[0] != "ipu"}
    print_table(("VERDICT", "CLASS", "RULE", "ACTION", "FINDINGS"), list(verdict_rows(found, frozenset(every))))
    print()
    for line in describe_rules(policy, found):
        print(line)


def verdict_rows(found: Sequence[PolicyRow], every: frozenset[str]) -> list[tuple[str, ...]]:
    """A row for each verdict, class and rule, with its findings. every: all checks that run, except those of IPUs."""
    groups: dict[tuple[str, str, str, str], dict[str, list[str]]] = {}
    for row in sorted(found, key=_order):
        key = (row.verdict.value, row.fault_class or "-", row.rule.name if row.rule else "-", row.action)
        reasons = groups.setdefault(key, {}).setdefault(row.check, [])
        if row.reason not in reasons:
            reasons.append(row.reason)
    return [(*key, _findings(checks, every)) for key, checks in groups.items()]


def _findings(checks: dict[str, list[str]], every: frozenset[str]) -> str:
    named = [f"{check}: {', '.join(reasons)}" for check, reasons in checks.items() if reasons != [ANY]]
    whole = [check for check, reasons in checks.items() if reasons == [ANY]]
    more = [check for check in whole if check not in every]
    if whole and every <= set(whole):
        named.append(", ".join(["all checks", *more]))
    elif whole:
        named.append(f"any of {', '.join(whole)}")
    return "; ".join(named)


def _order(row: PolicyRow) -> tuple[object, ...]:
    name = row.rule.name if row.rule else ""
    return row.verdict.value, _LOUDEST.index(row.action), name, row.fault_class, row.check


def describe_rules(policy: Policy, found: Sequence[PolicyRow]) -> Iterator[str]:
    """What each rule that opens faults does, by class of fault."""
    seen: dict[tuple[str, ...], list[str]] = {}
    for row in sorted(found, key=_order):
        if row.rule is None or not row.rule.opens:
            continue
        done = rule_outcome(row.rule, row, policy)
        does = " ".join(part for part in (row.rule.action, done["taint"]) if part)
        does += f" after {format_duration(done['for'])}" if done["for"] else ""
        own = done["proof"] is not None and row.check in done["proof"]["checks"]
        of = "the kernel log" if row.check == DMESG.name else "checks"
        key = (row.rule.name, of, does, describe_end(done, row.check if own else ""))
        asks = seen.setdefault(key, [])
        if (row.fault_class or "-") not in asks:
            asks.append(row.fault_class or "-")
    for (name, of, does, ends), asks in seen.items():
        yield f"{name} (faults of {of}, class {', '.join(asks)}): {does}"
        yield f"    closed by {ends}"


def describe_end(done: dict[str, Any], own: str) -> str:
    """What ends a fault. own: the failed check, if it is part of the verification; otherwise empty."""
    proof = done["proof"]
    ways = [way for way in done["closedBy"] if way != "proof"]
    if proof is not None:
        names = ["the failed check" if name == own else name for name in proof["checks"]]
        names = [f"{name} if installed" if name in proof["ifInstalled"] else name for name in names]
        after = " after a boot" if proof["afterBoot"] else ""
        ways.insert(0, f"verification ({', '.join(names)}: {proof['passes']}x{after})")
    return " or ".join(ways)
