"""`muster policy check FILE`: is it a policy, and what does it make of every fault that is known."""

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
from muster_cli.report.columns import print_table
from muster_cli.report.policy_rows import ANY, PolicyRow, policy_rows, rule_outcome
from muster_cli.report.policy_warnings import find_notes, find_warnings
from muster_cli.report.quantities import format_duration
from muster_kube.process.command_line import EXIT_USAGE
from muster_tainter.policy.file import PolicyError, load_policy
from muster_tainter.policy.rules import Policy

EXIT_WARNINGS = 1
_LOUDEST = ("drain", "taint", "quarantine", "event", "ignore", "nothing")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(metavar="check", required=True)
    check = commands.add_parser(
        "check",
        help="is it a policy, and what does it do",
        description="Exit code 0: fine, 1: something in it is not likely meant, 64: the tainter would refuse it.",
    )
    check.add_argument("file", metavar="FILE", type=Path, help="a policy.yaml, or - for the built-in one")
    check.add_argument("--catalogue", metavar="FILE", type=Path, help="kernel-log rows of your own")
    check.add_argument("--plugins", type=Path, metavar="DIR", help="a folder of plug-ins, see docs/plugins.md")
    check.add_argument("--json", action="store_true", help="one JSON document, a row each")


def main(arguments: argparse.Namespace) -> int:
    try:
        policy = load_policy(None if str(arguments.file) == "-" else arguments.file)
        catalogue = load_catalogue(arguments.catalogue)
    except (PolicyError, CatalogueError) as error:
        print("\n".join(f"muster: {line}" for line in str(error).splitlines()), file=sys.stderr)
        return EXIT_USAGE
    checks = load_registry(None, {}, arguments.plugins)
    found, doubts, told = (
        policy_rows(policy, catalogue, checks),
        list(find_warnings(policy, checks)),
        list(find_notes(policy)),
    )
    if arguments.json:
        document = {"rows": [row.document(policy) for row in found], "warnings": doubts, "notes": told}
        print(json.dumps(document, indent=2))
    else:
        _print(policy, found)
        for line in doubts:
            print(f"warning: {line}")
        for line in told:
            print(f"note: {line}")
    return EXIT_WARNINGS if doubts else 0


def _print(policy: Policy, found: Sequence[PolicyRow]) -> None:
    every = {row.check for row in found if row.reason == ANY and row.component.partition("/")[0] != "ipu"}
    print_table(("VERDICT", "CLASS", "RULE", "DOES", "FINDINGS"), list(verdict_rows(found, frozenset(every))))
    print()
    for line in describe_rules(policy, found):
        print(line)


def verdict_rows(found: Sequence[PolicyRow], every: frozenset[str]) -> list[tuple[str, ...]]:
    """A row for each verdict, class and rule, with all findings that come to it. every: checks that run, but IPUs'."""
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
        named.append(", ".join(["every check that is run", *more]))
    elif whole:
        named.append(f"any of {', '.join(whole)}")
    return "; ".join(named)


def _order(row: PolicyRow) -> tuple[object, ...]:
    name = row.rule.name if row.rule else ""
    return row.verdict.value, _LOUDEST.index(row.action), name, row.fault_class, row.check


def describe_rules(policy: Policy, found: Sequence[PolicyRow]) -> Iterator[str]:
    """What each rule that opens faults does with those of each class."""
    seen: dict[tuple[str, ...], list[str]] = {}
    for row in sorted(found, key=_order):
        if row.rule is None or not row.rule.opens:
            continue
        done = rule_outcome(row.rule, row, policy)
        does = " ".join(part for part in (row.rule.action, done["taint"]) if part)
        does += f" after {format_duration(done['for'])}" if done["for"] else ""
        own = done["proof"] is not None and row.check in done["proof"]["checks"]
        of = "kernel log" if row.check == DMESG.name else "checks"
        key = (row.rule.name, of, does, describe_end(done, row.check if own else ""))
        asks = seen.setdefault(key, [])
        if (row.fault_class or "-") not in asks:
            asks.append(row.fault_class or "-")
    for (name, of, does, ends), asks in seen.items():
        yield f"{name} (of {of}, {', '.join(asks)}): {does}"
        yield f"    until {ends}"


def describe_end(done: dict[str, Any], own: str) -> str:
    """In words for people: what ends a fault. own: the failed check, where it is part of the proof."""
    proof = done["proof"]
    ways = [way for way in done["closedBy"] if way != "proof"]
    if proof is not None:
        names = ["the failed check" if name == own else name for name in proof["checks"]]
        after = " after a boot" if proof["afterBoot"] else ""
        ways.insert(0, f"proof ({', '.join(names)}: {proof['passes']} times{after})")
    return " or ".join(ways)
