"""The newest hundred changes of a check's verdict. Pure; saved in the state file together with the verdict."""

from bisect import bisect_right
from collections.abc import Iterable

import msgspec

from muster_agent.findings.ledger import REASON_LIMIT
from muster_checks.base.vocabulary import Verdict, shorten

CHANGES_LIMIT = 100
# UNKNOWN for this reason, while logs are still being read, is not a change of the node
NOTHING_KNOWN_YET = "Starting"


class VerdictChange(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A change of the verdict to ``to``.

    at:              seconds since the epoch
    old:             (in JSON ``from``) the verdict before; empty for the first one
    reason, message: those of the new verdict; empty for PASS
    """

    at: float
    old: str = msgspec.field(name="from", default="")
    to: str
    reason: str = ""
    message: str = ""


class VerdictHistory:
    """entries: the saved changes, oldest first."""

    def __init__(self, entries: Iterable[VerdictChange] = ()) -> None:
        self._entries = tuple(entries)[-CHANGES_LIMIT:]

    @property
    def entries(self) -> tuple[VerdictChange, ...]:
        """Oldest first, at most :data:`CHANGES_LIMIT`; each starts with the verdict in which the one before ended."""
        return self._entries

    def record(self, at: float, old: Verdict | None, new: Verdict, reason: str = "", message: str = "") -> bool:
        """Record that the verdict is ``new`` since ``at``. Returns False if that is not a change.

        old: the verdict before, as far as the caller knows. The last entry of the history takes precedence, because
             insert_reported may have added entries that the caller does not know.
        """
        if reason == NOTHING_KNOWN_YET:
            return False
        before = self._entries[-1].to if self._entries else (old.value if old is not None else "")
        if before == new.value:
            return False
        change = VerdictChange(at=at, old=before, to=new.value, reason=reason[:REASON_LIMIT], message=shorten(message))
        self._entries = (*self._entries, change)[-CHANGES_LIMIT:]
        return True

    def insert_reported(self, at: float, verdict: Verdict, reason: str = "", message: str = "") -> bool:
        """Insert a change to ``verdict`` at ``at``, which an earlier agent published but could not save.

        A change that is already known has no effect. If the same verdict was found again later, that change moves back
        to ``at``. Returns False if nothing changed.
        """
        if reason == NOTHING_KNOWN_YET:
            return False
        place = bisect_right(self._entries, at, key=lambda change: change.at)
        earlier, later = self._entries[:place], self._entries[place:]
        if earlier:
            before = earlier[-1].to
        elif later:
            # older than the history, or its first entry with a rounded time
            before = later[0].old
            if later[0].to != verdict.value:
                return False
        else:
            before = ""
        if before == verdict.value:
            return False
        if later and later[0].to == verdict.value:
            learnt = msgspec.structs.replace(later[0], at=at)
            later = later[1:]
        else:
            learnt = VerdictChange(
                at=at, old=before, to=verdict.value, reason=reason[:REASON_LIMIT], message=shorten(message)
            )
            if later:
                later = (msgspec.structs.replace(later[0], old=verdict.value), *later[1:])
        self._entries, known = (*earlier, learnt, *later)[-CHANGES_LIMIT:], self._entries
        return self._entries != known
