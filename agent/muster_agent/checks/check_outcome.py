"""The outcome of a request to run a check."""

import msgspec

from muster_checks.base.vocabulary import Result, Verdict

BUSY = "busy"


class CheckOutcome(msgspec.Struct, frozen=True):
    """The result of a check, and whether it was run for this request.

    age_s:   age of ``result`` in seconds; 0: this request produced it
    refused: ``busy`` if a heavy check was not run because the node is busy; ``result`` is then the last one, or UNKNOWN
             with reason Busy if there is none
    why:     the work on the node, for people
    """

    result: Result
    age_s: float = 0.0
    refused: str = ""
    why: str = ""


def refused_outcome(check: str, why: str, last: Result | None, now: float) -> CheckOutcome:
    """The outcome on a busy node. now: seconds since the epoch."""
    if last is None:
        result = Result(check=check, verdict=Verdict.UNKNOWN, reason="Busy", message=why, started=now)
        return CheckOutcome(result, refused=BUSY, why=why)
    return CheckOutcome(last, age_s=max(0.0, now - last.started), refused=BUSY, why=why)
