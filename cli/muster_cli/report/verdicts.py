"""Results as text: one line for each check, and below it the findings that are not PASS (with details: all of them)."""

import sys
from collections.abc import Sequence

from muster_checks.base.vocabulary import Finding, Measurement, Origin, Result, Verdict
from muster_cli.report.colours import VERDICT_STYLES, paint, use_colour

NAMED_LIMIT = 3
"""Findings that a note names."""


def print_results(results: Sequence[Result], *, details: bool) -> None:
    lines = as_lines(results, details=details, coloured=use_colour(sys.stdout))
    print("\n".join((*user_space_notes(results), *lines)))


def user_space_notes(results: Sequence[Result]) -> list[str]:
    """Which failures rest on a kernel log line that a program or a person wrote, and how to leave such lines out."""
    notes: list[str] = []
    for result in results:
        found = [f for f in result.findings if f.verdict is Verdict.FAIL and f.origin is Origin.USER]
        if not found:
            continue
        named = [f"{finding.component} {finding.reason}" for finding in found[:NAMED_LIMIT]]
        more = f" and {len(found) - NAMED_LIMIT} more" if len(found) > NAMED_LIMIT else ""
        notes += [
            f"{result.check}: FAIL because of a line written from user space, not by the kernel: "
            f"{', '.join(named)}{more}",
            f"{result.check}: to leave such lines out: muster check {result.check} --set user_lines=refuse",
        ]
    return notes


def as_lines(results: Sequence[Result], *, details: bool, coloured: bool = False) -> list[str]:
    """``details``: healthy components too, with their measurements."""
    width = max((len(result.check) for result in results), default=0)
    lines: list[str] = []
    for result in results:
        shown = [f for f in result.findings if details or f.verdict not in (Verdict.PASS, Verdict.SKIP)]
        text = "" if shown else _summary(result)  # findings say more than their summary
        verdict = _paint(result.verdict, coloured)
        lines.append(f"{result.check:<{width}}  {verdict}  {text}".rstrip())
        lines += [f"{'':<{width}}    {_finding(finding, coloured)}" for finding in shown]
    return lines


def _summary(result: Result) -> str:
    if result.verdict in (Verdict.PASS, Verdict.WARN, Verdict.FAIL):
        count = len(result.findings)
        return f"{count} component{'s' if count != 1 else ''}" if count else ""
    return f"{result.reason}: {result.message}" if result.message else result.reason


def _finding(finding: Finding, coloured: bool) -> str:
    asks = f" (class {finding.fault_class})" if finding.fault_class else ""
    times = f" x{finding.count}" if finding.count > 1 else ""
    origin = " [written from user space]" if finding.origin == "user" else ""
    healthy = finding.verdict is Verdict.PASS
    # a number without unit or limit needs the message: the condition of a plug-in is 0 if all is well
    figures = healthy and any(m.unit or m.threshold is not None for m in finding.measurements)
    text = ", ".join(map(_measurement, finding.measurements)) if figures else finding.message
    reason = "" if healthy else f" {finding.reason}{asks}{times}:"
    return f"{_paint(finding.verdict, coloured)}  {finding.component}{reason} {text}{origin}".rstrip()


def _measurement(measurement: Measurement) -> str:
    limit = f" (limit {_number(measurement.threshold)})" if measurement.threshold is not None else ""
    unit = measurement.unit if measurement.unit in ("", "%") else f" {measurement.unit}"
    return f"{measurement.name} {_number(measurement.value)}{unit}{limit}"


def _number(value: float) -> str:
    return f"{value:.0f}" if value == int(value) and abs(value) < 1e15 else f"{value:.4g}"


def _paint(verdict: Verdict, coloured: bool) -> str:
    text = f"{verdict.value:<7}"
    return paint(text, VERDICT_STYLES[verdict.value]) if coloured else text
