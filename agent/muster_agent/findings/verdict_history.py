"""The history of one check's verdict: every change of it, the newest hundred.

Pure; kept in the state file beside the verdict it ends in, so a change is saved with what it led to, or not at all.
"""

from bisect import bisect_right
from collections.abc import Iterable

import msgspec

from muster_agent.findings.ledger import REASON_LIMIT
from muster_checks.base.vocabulary import Verdict, shorten

CHANGES_LIMIT = 100
# a process that has not read everything yet knows nothing yet; that is no change of the node's
NOTHING_KNOWN_YET = "Starting"


class VerdictChange(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The verdict became ``to`` at ``at`` (seconds since the epoch). ``old`` (in JSON ``from``): empty for the first
    verdict ever. reason, message: the new verdict's; empty for PASS."""

    at: float
    old: str = msgspec.field(name="from", default="")
    to: str
    reason: str = ""
    message: str = ""


class VerdictHistory:
    """``entries``: what was kept, oldest first."""

    def __init__(self, entries: Iterable[VerdictChange] = ()) -> None:
        self._entries = tuple(entries)[-CHANGES_LIMIT:]

    @property
    def entries(self) -> tuple[VerdictChange, ...]:
        """Oldest first, :data:`CHANGES_LIMIT` at most; each begins with the verdict that the one before ended in."""
        return self._entries

    def record(self, at: float, old: Verdict | None, new: Verdict, reason: str = "", message: str = "") -> bool:
        """Keep that the verdict is ``new`` since ``at``; False where that is no change.

        old: what it was before, as far as the caller knows; where there is a history, its last word counts: what was
             noted between two words of the caller's must neither be left out nor be told twice
        """
        if reason == NOTHING_KNOWN_YET:
            return False
        before = self._entries[-1].to if self._entries else (old.value if old is not None else "")
        if before == new.value:
            return False
        change = VerdictChange(at=at, old=before, to=new.value, reason=reason[:REASON_LIMIT], message=shorten(message))
        self._entries = (*self._entries, change)[-CHANGES_LIMIT:]
        return True

    def insert_reported(self, at: float, told: Verdict, reason: str = "", message: str = "") -> bool:
        """Put in what an agent before this one told but could not save: the verdict was ``told`` since ``at``.

        What is known already changes nothing; what was found again since then began when it was told. False: nothing
        was new.
        """
        if reason == NOTHING_KNOWN_YET:
            return False
        place = bisect_right(self._entries, at, key=lambda change: change.at)
        earlier, later = self._entries[:place], self._entries[place:]
        if earlier:
            before = earlier[-1].to
        elif later:
            # from before the history begins, or its first word with the milliseconds that travel
            before = later[0].old
            if later[0].to != told.value:
                return False
        else:
            before = ""
        if before == told.value:
            return False
        if later and later[0].to == told.value:
            learnt = msgspec.structs.replace(later[0], at=at)
            later = later[1:]
        else:
            learnt = VerdictChange(
                at=at, old=before, to=told.value, reason=reason[:REASON_LIMIT], message=shorten(message)
            )
            if later:
                later = (msgspec.structs.replace(later[0], old=told.value), *later[1:])
        self._entries, known = (*earlier, learnt, *later)[-CHANGES_LIMIT:], self._entries
        return self._entries != known
