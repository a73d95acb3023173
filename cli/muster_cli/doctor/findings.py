"""What the doctor says: one finding, its verdict, and what to type. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from muster_checks.base.vocabulary import Verdict, shorten

EXIT_WRONG, EXIT_UNREAD = 1, 3
_NAMED = 3  # of many nodes, pods or fields so many are named


@dataclass(frozen=True)
class DoctorFinding:
    """area: ``rights``, ``agents`` …; what: is so; mend: what to type or to change, empty where there is nothing to do.

    FAIL: something does not work. WARN: it does, and somebody should know. UNKNOWN: could not be looked at.
    """

    area: str
    verdict: Verdict
    what: str
    mend: str = ""


@dataclass(frozen=True)
class ReadFailure:
    """What could not be read, and why: the API server's words. forbidden: for want of a right."""

    what: str
    why: str
    forbidden: bool = False


def read_failures(area: str, *found: ReadFailure) -> list[DoctorFinding]:
    return [
        DoctorFinding(
            area,
            Verdict.UNKNOWN,
            f"{each.what}: not looked at: {shorten(each.why)}",
            "run it as somebody who may read that (an administrator's kubeconfig)" if each.forbidden else "",
        )
        for each in found
    ]


def exit_code(findings: Iterable[DoctorFinding]) -> int:
    """0: all is well; 1: something is wrong; 3: nothing wrong was seen, and not all could be looked at."""
    verdicts = {finding.verdict for finding in findings}
    if verdicts & {Verdict.FAIL, Verdict.WARN}:
        return EXIT_WRONG
    return EXIT_UNREAD if Verdict.UNKNOWN in verdicts else 0


def join_some(names: Iterable[str]) -> str:
    """``n1, n2, n3 and 7 more``, in order."""
    known: Sequence[str] = sorted(set(names))
    more = f" and {len(known) - _NAMED} more" if len(known) > _NAMED else ""
    return ", ".join(known[:_NAMED]) + more
