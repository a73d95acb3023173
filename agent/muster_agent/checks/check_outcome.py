"""What the agent answers when it is asked for a check."""

import msgspec

from muster_checks.base.vocabulary import Result, Verdict

BUSY = "busy"


class CheckOutcome(msgspec.Struct, frozen=True):
    """The result of one check for somebody who asked.

    age_s:   seconds since ``result`` was found; 0: for this very question
    refused: ``busy`` where a heavy check was not run because of somebody's work; ``result`` is then the last one, or
             UNKNOWN with reason Busy where there is none
    why:     whose work it was, for people
    """

    result: Result
    age_s: float = 0.0
    refused: str = ""
    why: str = ""


def refused_outcome(check: str, why: str, last: Result | None, now: float) -> CheckOutcome:
    """``now``: seconds since the epoch."""
    if last is None:
        result = Result(check=check, verdict=Verdict.UNKNOWN, reason="Busy", message=why, started=now)
        return CheckOutcome(result, refused=BUSY, why=why)
    return CheckOutcome(last, age_s=max(0.0, now - last.started), refused=BUSY, why=why)
