"""A finding of the doctor: its verdict, and how to fix it. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from muster_checks.base.vocabulary import Verdict, shorten

_NAMED = 3  # of many nodes, pods or fields, this many are listed


@dataclass(frozen=True)
class DoctorFinding:
    """area: ``rights``, ``agents`` …; what: the finding; mend: how to fix it, empty if there is nothing to do.

    FAIL: something does not work. WARN: it works, but needs attention. UNKNOWN: it could not be read.
    """

    area: str
    verdict: Verdict
    what: str
    mend: str = ""


@dataclass(frozen=True)
class ReadFailure:
    """what: the object that could not be read; why: the message of the API server; forbidden: the right is missing."""

    what: str
    why: str
    forbidden: bool = False


def read_failures(area: str, *found: ReadFailure) -> list[DoctorFinding]:
    return [
        DoctorFinding(
            area,
            Verdict.UNKNOWN,
            f"{each.what}: could not be read: {shorten(each.why)}",
            "run muster doctor with a kubeconfig that may read it (that of an administrator)" if each.forbidden else "",
        )
        for each in found
    ]


def join_some(names: Iterable[str]) -> str:
    """``n1, n2, n3 and 7 more``, sorted."""
    known: Sequence[str] = sorted(set(names))
    more = f" and {len(known) - _NAMED} more" if len(known) > _NAMED else ""
    return ", ".join(known[:_NAMED]) + more
