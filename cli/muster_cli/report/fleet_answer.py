"""What an agent says of the whole fleet, line by line as it comes, and what people are told of it."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec

from muster_agent.query.node_answer import CheckAnswer, Ending, NodeAnswer
from muster_checks.base.vocabulary import Verdict, severity, shorten, worst
from muster_cli.report.quantities import age, plural

GOOD = (Verdict.PASS, Verdict.SKIP)
FINDINGS_SHOWN = 3  # of one check on one node
CHECKS_SHOWN = 3  # of a sound node by name; more are a number
SHOWN_GOOD = 20  # so many sound nodes have a row each; more are one line
HEAD = ("NODE", "VERDICT", "CHECK", "SAYS")

_node = msgspec.json.Decoder(NodeAnswer)
_ending = msgspec.json.Decoder(Ending)


class AnswerRow(NamedTuple):
    """One line of the table: as :data:`HEAD`."""

    node: str
    verdict: str
    check: str
    says: str


class BadAnswerLine(ValueError):
    """A line that is neither a node's nor the last one; ``str()`` says why."""


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
        raise BadAnswerLine(f"{shorten(str(why))}; it begins {shown!r}") from why


class FleetAnswers:
    """What has come so far. A node counts once: the first word on it stands."""

    def __init__(self) -> None:
        self.verdicts: dict[str, Verdict] = {}
        self.rows: dict[str, list[AnswerRow]] = {}
        self.ending: Ending | None = None
        self.garbage: list[str] = []

    def take(self, line: bytes) -> NodeAnswer | None:
        """The node that ``line`` is about; None where it is about none."""
        try:
            found = read_line(line)
        except BadAnswerLine as error:
            self.garbage.append(str(error))
            return None
        if isinstance(found, Ending):
            self.ending = found
            return None
        if found.node in self.verdicts:
            self.garbage.append(f"{shorten(found.node)} has answered twice")
            return None
        self.verdicts[found.node] = found.verdict
        self.rows[found.node] = answer_rows(found)
        return found

    def count(self, verdict: Verdict) -> int:
        return sum(each is verdict for each in self.verdicts.values())

    def trouble(self) -> list[str]:
        """Why this is not the whole answer; empty: it is."""
        found = []
        if self.garbage:
            more = f" ({len(self.garbage)} such lines)" if len(self.garbage) > 1 else ""
            found.append(f"a line of the answer makes no sense: {self.garbage[0]}{more}")
        if self.ending is None:
            found.append(f"the answer breaks off after {plural(len(self.verdicts), 'node')}")
        elif self.ending.error:
            found.append(self.ending.error)
        return found

    def verdict(self) -> Verdict:
        """The worst; UNKNOWN where nobody, or not everybody, has answered and nothing worse is known."""
        whole = [] if self.verdicts and not self.trouble() else [Verdict.UNKNOWN]
        return worst([*self.verdicts.values(), *whole], Verdict.UNKNOWN)

    def table(self, *, every: bool) -> tuple[list[AnswerRow], str]:
        """Rows, the worst nodes first, and what is said of those that have none. every: each node has one."""
        ranked = sorted(self.verdicts, key=lambda node: (-severity(self.verdicts[node]), node))
        good = [node for node in ranked if self.verdicts[node] in GOOD]
        hidden = set() if every or len(good) <= SHOWN_GOOD else set(good)
        rows = [row for node in ranked if node not in hidden for row in self.rows[node]]
        return rows, describe_hidden(len(hidden), [self.verdicts[node] for node in hidden])


def describe_hidden(hidden: int, verdicts: Iterable[Verdict]) -> str:
    """``480 nodes are fine (--all shows them)``, or nothing."""
    if not hidden:
        return ""
    skipped = sum(verdict is Verdict.SKIP for verdict in verdicts)
    without = f", {skipped} of them without what was to be checked" if skipped else ""
    return f"{hidden} nodes are fine{without} (--all shows them)"


def answer_rows(answer: NodeAnswer) -> list[AnswerRow]:
    """At least one; the worst check first."""
    if answer.error:
        reason = answer.results[0].reason if answer.results else ""
        says = f"{reason}: {answer.error}" if reason else answer.error
        return [AnswerRow(answer.node, answer.verdict.value, "", says)]
    results = sorted(answer.results, key=lambda result: -severity(result.verdict))
    bad = [result for result in results if result.verdict not in GOOD]
    if bad:
        return [
            AnswerRow(answer.node, result.verdict.value, result.check, says) for result in bad for says in _bad(result)
        ]
    few = len(results) <= CHECKS_SHOWN
    names = ", ".join(result.check for result in results) if few else plural(len(results), "check")
    old = [f"{result.check}: {aged}" for result in results if (aged := _age(result))]
    skipped = [result for result in results if result.verdict is Verdict.SKIP]
    why = [f"{result.check}: {result.message or result.reason}" for result in skipped]
    if not few and skipped:
        why = [f"{len(skipped)} do not apply here"]
    return [AnswerRow(answer.node, answer.verdict.value, names, "; ".join([*old, *why]))]


def _bad(result: CheckAnswer) -> list[str]:
    findings = [f for f in sorted(result.findings, key=lambda f: -severity(f.verdict)) if f.verdict not in GOOD]
    aged = _age(result)
    end = f" ({aged})" if aged else ""
    if not findings:
        said = f"{result.reason}: {result.message}" if result.message else result.reason
        return [f"{said}{end}"]
    says = [f"{f.component} {f.reason}: {f.message}{end}" for f in findings[:FINDINGS_SHOWN]]
    more = len(findings) - FINDINGS_SHOWN
    return [*says, f"and {more} more"] if more > 0 else says


def _age(result: CheckAnswer) -> str:
    if result.refused:
        why = f"{result.refused}: {result.why}" if result.why else result.refused
        return f"{age(result.age_seconds)} old, {why}" if result.age_seconds else f"not run, {why}"
    return f"{age(result.age_seconds)} old" if result.age_seconds else ""


def worst_line(rows: Sequence[AnswerRow]) -> str:
    """The worst thing on a node, in one line."""
    row = rows[0]
    return f"{row.node} {row.verdict} {row.check + ': ' if row.check else ''}{row.says}".rstrip()
