"""Renders answers as text, in the layout of Autopilot's /status, so that scripts written for it keep working.

Two kinds of lines are added, as docs/decisions.md describes: one for each component that is not PASS, and one for each
result that this query did not produce.
"""

from collections.abc import Mapping, Sequence

from muster_agent.checks.check_outcome import BUSY
from muster_agent.query.node_answer import CheckAnswer, NodeAnswer
from muster_checks.base.vocabulary import Finding, Verdict, shorten

RULE = "-" * 37
LINE_LIMIT = 1024  # bytes; text from peers is untrusted and must not add lines
HOSTS_SHOWN = 8

# by check: its title, and its name in the summary, as in Autopilot
_TITLES = {
    "pciebw": ("PCIe Bandwidth", "PCIE"),
    "dcgm": ("DCGM Diagnostics", "DCGM"),
    "remapped": ("GPU Remapped Rows", "REMAPPED ROWS"),
    "gpumem": ("GPU Memory Bandwidth", "GPU MEM Test"),
    "gpupower": ("GPU Power Slowdown", "GPU POWER"),
    "ping": ("Network Reachability", "PING"),
    "iperf": ("Network Bandwidth", "IPERF"),
    "pvc": ("Volume Claim", "PVC Create-Delete Test"),
}
# by check: the measurement that is printed in one line, with one figure for each component
_FIGURES = {"pciebw": "to_device"}
_WORDS = {Verdict.PASS: "SUCCESS"}
_STATUS = {Verdict.FAIL: "Failed", Verdict.WARN: "Warning", Verdict.UNKNOWN: "Unknown"}
_NOT_MEASURED = "-"


def node_status(answer: NodeAnswer) -> list[str]:
    """``["PCIE Failed", …]``, or ``["Ok"]``; the reason if the node did not answer. A node on which no check has run is
    never Ok: it is ``["Skipped"]``, or ``["Unknown"]`` if it has no results."""
    if answer.error:
        return [f"No answer ({answer.results[0].reason})" if answer.results else "No answer"]
    problems = [
        f"{_titles(result.check)[1]} {_STATUS[result.verdict]}"
        for result in answer.results
        if result.verdict in _STATUS
    ]
    if problems:
        return problems
    if any(result.verdict is Verdict.PASS for result in answer.results):
        return ["Ok"]
    return ["Skipped"] if answer.results else ["Unknown"]


def heading(hosts: Sequence[str] | None, job: str = "", nodelabel: str = "") -> str:
    """The first line. hosts: None for all nodes; job, nodelabel: the selectors, whose nodes are added to ``hosts``."""
    chosen = []
    if hosts is not None:
        chosen.append(f"{len(hosts)} nodes" if len(hosts) > HOSTS_SHOWN else ", ".join(hosts))
    if job:
        chosen.append(f"nodes of job {job}")
    if nodelabel:
        chosen.append(f"nodes with label {nodelabel}")
    return f"Checking status on {' and '.join(chosen) or 'all nodes'}\n"


def node_block(answer: NodeAnswer, query: str) -> str:
    """The block of one node. query: the equivalent query to its endpoint."""
    host = answer.endpoint.rpartition(":")[0]
    lines = [
        f"Autopilot Endpoint: {host or 'unknown'}",
        f"Node: {answer.node}",
        f"url(s): http://{answer.endpoint}/status?{query}" if host else "url(s): none",
        "Response:",
    ]
    if answer.error:
        lines += [_line(f"no answer: {answer.error}"), ""]
    else:
        lines += [f"Checking system status of host {answer.node} (localhost) ", ""]  # Autopilot has the trailing blank
    for result in () if answer.error else answer.results:
        lines += [*_check(answer.node, result), ""]
    return "\n".join([*lines, _line(f"Node Status: {', '.join(node_status(answer))}"), RULE, ""])


def summary_block(summary: Mapping[str, Sequence[str]]) -> str:
    """A dict in Python's syntax with one node on each line, sorted by name."""
    rows = [f"{name!r}: {list(summary[name])!r}" for name in sorted(summary)]
    return "Node Summary:\n\n{" + ",\n ".join(rows) + "}\n"


def ending(runtime_s: float, notes: Sequence[str] = (), error: str = "") -> str:
    """The last lines. error: why the answer is incomplete."""
    lines = [f"error: {error}"] if error else []
    lines += [f"note: {note}" for note in notes]
    return "".join(f"{_line(line)}\n" for line in [*lines, f"runtime: {runtime_s} sec"])


def _titles(check: str) -> tuple[str, str]:
    name = shorten(check)
    return _TITLES.get(name) or (name, name.upper())


def _check(node: str, result: CheckAnswer) -> list[str]:
    tag = f"[[ {shorten(result.check).upper()} ]]"
    lines = [
        f"{tag} Briefings completed. Continue with {_titles(result.check)[0]} evaluation.",
        f"{tag} {_WORDS.get(result.verdict, result.verdict.value)}",
        f"Host  {node}",
    ]
    if (measured := _FIGURES.get(result.check)) and any(each.measurements for each in result.findings):
        lines.append(" ".join(_figure(finding, measured) for finding in result.findings))
    if result.refused == BUSY:
        lines.append(_line(f"not run, because the node is busy: {result.why}"))
    if result.age_seconds:
        lines.append(f"last result, {_age(result.age_seconds)} old")
    lines += [_finding(finding) for finding in result.findings if finding.verdict is not Verdict.PASS]
    if result.message and not result.findings:
        lines.append(_line(f"{result.reason}: {result.message}"))
    return lines


def _figure(finding: Finding, name: str) -> str:
    """With one decimal, as in Autopilot."""
    values = [each.value for each in finding.measurements if each.name == name]
    return f"{values[0]:.1f}" if values else _NOT_MEASURED


def _finding(finding: Finding) -> str:
    numbers = ", ".join(
        f"{m.name}={m.value:g} {m.unit}".rstrip() + (f" (threshold {m.threshold:g})" if m.threshold is not None else "")
        for m in finding.measurements
    )
    times = f" x{finding.count}" if finding.count > 1 else ""
    head = f"{finding.verdict} {finding.component} {finding.reason}{times}: {finding.message}"
    return _line(f"{head} [{numbers}]" if numbers else head)


def _age(seconds: float) -> str:
    for unit, size in (("days", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def _line(text: str) -> str:
    return shorten(text, LINE_LIMIT)
