"""Collects the answer of an agent for the fleet, line by line, and makes the table of `muster run` from it."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec

from muster_agent.query.node_answer import CheckAnswer, Ending, NodeAnswer
from muster_checks.base.vocabulary import Verdict, severity, shorten, worst
from muster_cli.report.quantities import age, plural

GOOD = (Verdict.PASS, Verdict.SKIP)
FINDINGS_SHOWN = 3  # of one check on one node
CHECKS_SHOWN = 3  # of a healthy node by name; more are counted
SHOWN_GOOD = 20  # healthy nodes with a row each; more are counted in one line
ALL_ROWS = (
    f"show a row for every healthy node; default: if more than {SHOWN_GOOD} nodes are healthy, show only their number"
)
HEAD = ("NODE", "VERDICT", "CHECK", "MESSAGE")

_node = msgspec.json.Decoder(NodeAnswer)
_ending = msgspec.json.Decoder(Ending)


class AnswerRow(NamedTuple):
    """A row of the table; columns as in :data:`HEAD`."""

    node: str
    verdict: str
    check: str
    message: str


class BadAnswerLine(ValueError):
    """The line is neither the answer of a node nor the end of the answer. ``str()`` says why."""


def read_line(line: bytes) -> NodeAnswer | Ending:
    """Raises BadAnswerLine."""
    try:
        return _node.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        why = error
    try:
        return _ending.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        shown = shorten(line[:120].decode("utf-8", "replace"))
        raise BadAnswerLine(f"{shorten(str(why))}: {shown!r}") from why


class FleetAnswers:
    """The answer so far. Of several answers for one node the first counts."""

    def __init__(self) -> None:
        self.verdicts: dict[str, Verdict] = {}
        self.rows: dict[str, list[AnswerRow]] = {}
        self.ending: Ending | None = None
        self.garbage: list[str] = []

    def take(self, line: bytes) -> NodeAnswer | None:
        """Add a line. Returns the answer if it is that of a new node, otherwise None."""
        try:
            found = read_line(line)
        except BadAnswerLine as error:
            self.garbage.append(str(error))
            return None
        if isinstance(found, Ending):
            self.ending = found
            return None
        if found.node in self.verdicts:
            self.garbage.append(f"two answers for node {shorten(found.node)}")
            return None
        self.verdicts[found.node] = found.verdict
        self.rows[found.node] = answer_rows(found)
        return found

    def count(self, verdict: Verdict) -> int:
        return sum(each is verdict for each in self.verdicts.values())

    def trouble(self) -> list[str]:
        """Why the answer is incomplete or damaged; empty if it is neither."""
        found = []
        if self.garbage:
            more = f" ({len(self.garbage)} such lines in all)" if len(self.garbage) > 1 else ""
            found.append(f"cannot decode a line of the answer: {self.garbage[0]}{more}")
        if self.ending is None:
            found.append(f"the answer ended early, after {plural(len(self.verdicts), 'node')}")
        elif self.ending.error:
            found.append(self.ending.error)
        return found

    def verdict(self) -> Verdict:
        """The worst verdict. An incomplete answer counts as UNKNOWN."""
        whole = [] if self.verdicts and not self.trouble() else [Verdict.UNKNOWN]
        return worst([*self.verdicts.values(), *whole], Verdict.UNKNOWN)

    def table(self, *, every: bool) -> tuple[list[AnswerRow], str]:
        """(rows, the worst nodes first; a line about the healthy nodes without a row). every: give all nodes a row."""
        ranked = sorted(self.verdicts, key=lambda node: (-severity(self.verdicts[node]), node))
        good = [node for node in ranked if self.verdicts[node] in GOOD]
        hidden = set() if every or len(good) <= SHOWN_GOOD else set(good)
        rows = [row for node in ranked if node not in hidden for row in self.rows[node]]
        return rows, describe_hidden(len(hidden), [self.verdicts[node] for node in hidden])


def describe_hidden(hidden: int, verdicts: Iterable[Verdict]) -> str:
    """``480 healthy nodes are not shown (--all shows them)``, or an empty string."""
    if not hidden:
        return ""
    skipped = sum(verdict is Verdict.SKIP for verdict in verdicts)
    without = f"; on {skipped} of them no check applies" if skipped else ""
    return f"{hidden} healthy nodes are not shown (--all shows them){without}"


def answer_rows(answer: NodeAnswer) -> list[AnswerRow]:
    """At least one row; the worst check first."""
    if answer.error:
        reason = answer.results[0].reason if answer.results else ""
        message = f"{reason}: {answer.error}" if reason else answer.error
        return [AnswerRow(answer.node, answer.verdict.value, "", message)]
    results = sorted(answer.results, key=lambda result: -severity(result.verdict))
    bad = [result for result in results if result.verdict not in GOOD]
    if bad:
        return [
            AnswerRow(answer.node, result.verdict.value, result.check, message)
            for result in bad
            for message in _bad(result)
        ]
    few = len(results) <= CHECKS_SHOWN
    names = ", ".join(result.check for result in results) if few else plural(len(results), "check")
    old = [f"{result.check}: {aged}" for result in results if (aged := _age(result))]
    skipped = [result for result in results if result.verdict is Verdict.SKIP]
    why = [f"{result.check}: {result.message or result.reason}" for result in skipped]
    if not few and skipped:
        why = [f"{len(skipped)} do not apply to this node"]
    return [AnswerRow(answer.node, answer.verdict.value, names, "; ".join([*old, *why]))]


def _bad(result: CheckAnswer) -> list[str]:
    findings = [f for f in sorted(result.findings, key=lambda f: -severity(f.verdict)) if f.verdict not in GOOD]
    aged = _age(result)
    end = f" ({aged})" if aged else ""
    if not findings:
        text = f"{result.reason}: {result.message}" if result.message else result.reason
        return [f"{text}{end}"]
    messages = [f"{f.component} {f.reason}: {f.message}{end}" for f in findings[:FINDINGS_SHOWN]]
    more = len(findings) - FINDINGS_SHOWN
    return [*messages, f"and {more} more findings"] if more > 0 else messages


def _age(result: CheckAnswer) -> str:
    if result.refused:
        why = f"{result.refused}: {result.why}" if result.why else result.refused
        return (
            f"result is {age(result.age_seconds)} old, not run now: {why}" if result.age_seconds else f"not run: {why}"
        )
    return f"result is {age(result.age_seconds)} old" if result.age_seconds else ""


def worst_line(rows: Sequence[AnswerRow]) -> str:
    """The worst finding of a node in one line."""
    row = rows[0]
    return f"{row.node} {row.verdict} {row.check + ': ' if row.check else ''}{row.message}".rstrip()
