"""The history of one check's verdict: every change of it, the newest hundred.

Pure; kept in the state file beside the verdict it ends in, so a change is saved with what it led to, or not at all.
"""

from collections.abc import Iterable

import msgspec

from muster_agent.ledger import REASON_LIMIT
from muster_checks.vocabulary import Verdict, shorten

CHANGES_LIMIT = 100
# a process that has not read everything yet knows nothing yet; that is no change of the node's
NOTHING_KNOWN_YET = "Starting"


class Change(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The verdict became ``to`` at ``at`` (seconds since the epoch). ``old`` (in JSON ``from``): empty for the first
    verdict ever. reason, message: the new verdict's; empty for PASS."""

    at: float
    old: str = msgspec.field(name="from", default="")
    to: str
    reason: str = ""
    message: str = ""


class Changes:
    """``entries``: what was kept, oldest first."""

    def __init__(self, entries: Iterable[Change] = ()) -> None:
        self._entries = tuple(entries)[-CHANGES_LIMIT:]

    @property
    def entries(self) -> tuple[Change, ...]:
        """Oldest first, :data:`CHANGES_LIMIT` at most; each begins with the verdict that the one before ended in."""
        return self._entries

    def note(self, at: float, old: Verdict | None, new: Verdict, reason: str = "", message: str = "") -> bool:
        """Keep that the verdict is ``new`` since ``at``; False where that is no change.

        old: what it was before, as far as the caller knows; where there is a history, its last word counts: what was
             noted between two words of the caller's must neither be left out nor be told twice
        """
        if reason == NOTHING_KNOWN_YET:
            return False
        before = self._entries[-1].to if self._entries else (old.value if old is not None else "")
        if before == new.value:
            return False
        change = Change(at=at, old=before, to=new.value, reason=reason[:REASON_LIMIT], message=shorten(message))
        self._entries = (*self._entries, change)[-CHANGES_LIMIT:]
        return True
