"""What a ledger has ever found, so that the agent can tell findings that somebody else wrote into its NodeHealth.

One entry for each component and reason, because numbers rise: what has a higher number than the last finding of its
component and reason was not found by this agent. A finding that was closed otherwise than by a request may still be an
open fault of the tainter. A later forged number of it is not disowned, because that would close the true fault.
"""

import msgspec

LIMIT = 256  # entries; as many as a ledger holds open. Kernel lines of users can name any number of components


class MadeFinding(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """occurrence: the last one; requested: it was cleared by a request, so the tainter has closed its fault too."""

    component: str
    reason: str
    occurrence: int
    requested: bool = False


class StoredMade(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """unknown_up_to: an earlier agent may have found anything with a number up to this one."""

    unknown_up_to: int = 0
    findings: tuple[MadeFinding, ...] = ()


class MadeFindings:
    def __init__(self, stored: StoredMade | None = None) -> None:
        """stored: None for a ledger that begins with number 1."""
        stored = stored or StoredMade()
        self.unknown_up_to = stored.unknown_up_to
        self._last = {(each.component, each.reason): each for each in stored.findings}

    def memory(self) -> StoredMade:
        return StoredMade(unknown_up_to=self.unknown_up_to, findings=tuple(self._last.values()))

    def note(self, key: tuple[str, str], occurrence: int) -> None:
        """The ledger gives the number ``occurrence`` to ``key``."""
        known = self._last.get(key)
        if known is not None and known.occurrence > occurrence:
            return
        self._last[key] = MadeFinding(component=key[0], reason=key[1], occurrence=occurrence)
        if len(self._last) > LIMIT:
            oldest = min(self._last.values(), key=lambda each: each.occurrence)
            del self._last[oldest.component, oldest.reason]
            self.unknown_up_to = max(self.unknown_up_to, oldest.occurrence)

    def note_request(self, key: tuple[str, str]) -> None:
        """A request has closed the finding of ``key``."""
        if (known := self._last.get(key)) is not None:
            self._last[key] = msgspec.structs.replace(known, requested=True)

    def is_foreign(self, key: tuple[str, str], occurrence: int) -> bool:
        """Whether neither this agent nor an earlier one can have published the finding."""
        known = self._last.get(key)
        if occurrence <= self.unknown_up_to:
            return False
        return known is None or (known.requested and occurrence > known.occurrence)
