"""Results as text, in the layout that scripts made for Autopilot's /status read (the founding page's sample)."""

from collections.abc import Sequence

from muster_checks.declaration import Check
from muster_checks.vocabulary import Finding, Result, Verdict

RULE = "-" * 37

_WORDS = {Verdict.PASS: "SUCCESS"}
_STATUS = {Verdict.FAIL: "Failed", Verdict.WARN: "Warning", Verdict.UNKNOWN: "Unknown"}


def node_status(results: Sequence[Result]) -> list[str]:
    """``["DMESG Failed", …]``, or ``["Ok"]`` where there is nothing to say."""
    return [f"{result.check.upper()} {_STATUS[result.verdict]}" for result in results if result.verdict in _STATUS] or [
        "Ok"
    ]


def whole_answer(
    node: str,
    address: str,
    query: str,
    checks: Sequence[Check],
    results: Sequence[Result],
    *,
    all_nodes: bool,
    runtime_s: float,
) -> str:
    """The answer for one node. ``address``: host:port it is served at; ``query``: as it would be asked there."""
    host = address.rsplit(":", 1)[0]
    lines = [
        f"Checking status on {'all nodes' if all_nodes else node}",
        f"Autopilot Endpoint: {host}",
        f"Node: {node}",
        f"url(s): http://{address}/status?{query}",
        "Response:",
        f"Checking system status of host {node} (localhost) ",  # the blank at its end is in the sample
        "",
    ]
    for check, result in zip(checks, results, strict=True):
        lines += [*_check(node, check, result), ""]
    status = node_status(results)
    lines += [f"Node Status: {', '.join(status)}", RULE, "", "", "Node Summary:", "", repr({node: status}), ""]
    lines.append(f"runtime: {runtime_s} sec")
    return "\n".join(lines) + "\n"


def _check(node: str, check: Check, result: Result) -> list[str]:
    tag = f"[[ {check.name.upper()} ]]"
    lines = [
        f"{tag} Briefings completed. Continue with {check.name} evaluation.",
        f"{tag} {_WORDS.get(result.verdict, result.verdict.value)}",
        f"Host  {node}",
    ]
    lines += [_finding(finding) for finding in result.findings if finding.verdict is not Verdict.PASS]
    if result.message and not result.findings:
        lines.append(f"{result.reason}: {result.message}")
    return lines


def _finding(finding: Finding) -> str:
    numbers = " ".join(
        f"{m.name}={m.value:g}{m.unit}" + (f" (threshold {m.threshold:g})" if m.threshold is not None else "")
        for m in finding.measurements
    )
    times = f" x{finding.count}" if finding.count > 1 else ""
    head = f"{finding.verdict} {finding.component} {finding.reason}{times}: {finding.message}"
    return f"{head} [{numbers}]" if numbers else head
