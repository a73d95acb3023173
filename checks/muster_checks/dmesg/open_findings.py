"""The open findings: merges the signs of a flood, keeps the worst verdict, and ends warnings after a quiet time.

For each finding (component, reason), the first sign is emitted at once, and then at most one a second, with the count
of the signs held back. A worse verdict is emitted at once. Times are those of the lines, so reading a log again gives
the same signs. The number of findings is bounded: at the limit, the one whose last sign is oldest is dropped.
"""

from collections import OrderedDict

import msgspec

from muster_checks.base.declaration import AllClear, Sign
from muster_checks.base.vocabulary import FaultClass, Origin, Verdict

COALESCE_S = 1.0
FINDINGS_LIMIT = 1024  # for each verdict: four times the agent's own limit; bounds the size of a position in a flood

_CLASS_RANK = {
    FaultClass.NONE: 0,
    FaultClass.RESTART_APP: 1,
    FaultClass.RESET: 2,
    FaultClass.QUARANTINE: 3,
    FaultClass.REBOOT: 4,
    FaultClass.REPLACE: 5,
    FaultClass.CONTACT: 6,
}

Event = Sign | AllClear


class OpenFinding(msgspec.Struct):
    """``emitted_at``: time of the last emitted sign; ``held``: the signs held back since, merged into one; ``more``:
    number of further signs equal to ``held``, which are only counted."""

    component: str
    reason: str
    verdict: Verdict
    fault_class: FaultClass
    message: str
    last_at: float
    emitted_at: float
    quiet_s: float
    held: Sign | None = None
    more: int = 0

    @property
    def rank(self) -> tuple[bool, int]:
        return self.verdict is Verdict.FAIL, _CLASS_RANK[self.fault_class]


def _held(found: OpenFinding) -> Sign | None:
    """All signs held back, merged into one."""
    if found.held is None or not found.more:
        return found.held
    return msgspec.structs.replace(
        found.held, count=found.held.count + found.more, at=max(found.held.at, found.last_at)
    )


def _join(held: Sign | None, sign: Sign) -> Sign:
    """Both merged: the message of the later one, the sum of the counts, origin ``user`` if either has it."""
    if held is None:
        return sign
    user = Origin.USER in (held.origin, sign.origin)
    return msgspec.structs.replace(
        sign, count=held.count + sign.count, at=max(held.at, sign.at), origin=Origin.USER if user else sign.origin
    )


class OpenFindings:
    """``evicted``: number of findings dropped at the limit."""

    def __init__(self) -> None:
        self.evicted = 0
        # separate, so that a flood of warnings never evicts a failure
        self._fails: OrderedDict[tuple[str, str], OpenFinding] = OrderedDict()
        self._warns: OrderedDict[tuple[str, str], OpenFinding] = OrderedDict()
        self._holding: dict[tuple[str, str], None] = {}
        self._flush_at: float | None = None  # no held sign is due earlier
        self._quiet_at: float | None = None  # no warning ends earlier

    def __len__(self) -> int:
        return len(self._fails) + len(self._warns)

    def is_open(self, component: str, reason: str) -> bool:
        return self._find((component, reason)) is not None

    def _find(self, key: tuple[str, str]) -> OpenFinding | None:
        return self._fails.get(key) or self._warns.get(key)

    def take(self, sign: Sign, quiet_s: float) -> list[Event]:
        """Take in one sign (FAIL or WARN). Returns the events to emit."""
        key = sign.component, sign.reason
        found = self._find(key)
        events: list[Event] = []
        if found is None:
            found = OpenFinding(
                sign.component, sign.reason, sign.verdict, sign.fault_class, sign.message, sign.at, sign.at, quiet_s
            )
            self._file(key, found, events)
            events.append(sign)
            return events
        rank = sign.verdict is Verdict.FAIL, _CLASS_RANK[sign.fault_class]
        worse = rank > found.rank
        if worse:
            self._warns.pop(key, None)
            found.verdict, found.fault_class = sign.verdict, sign.fault_class
        elif rank < found.rank:
            sign = msgspec.structs.replace(
                sign, verdict=found.verdict, fault_class=found.fault_class, message=found.message
            )
        found.message = sign.message
        found.last_at = max(found.last_at, sign.at)
        found.quiet_s = quiet_s
        joined = _join(_held(found), sign)
        # abs(): after the clock was set back, signs must not be held for hours
        if worse or abs(sign.at - found.emitted_at) >= COALESCE_S:
            self._emitted(key, found, sign.at)
            events.append(joined)
        else:
            found.held, found.more = joined, 0
            self._holding[key] = None
            self._flush_at = _earlier(self._flush_at, found.emitted_at + COALESCE_S)
        self._file(key, found, events)
        return events

    def count_more(
        self,
        component: str,
        reason: str,
        verdict: Verdict,
        fault_class: FaultClass,
        at: float,
        origin: Origin | None,
        count: int,
    ) -> bool:
        """In a flood, signs equal to the one already held are only counted, not created.

        False: nothing was counted, so the caller must use ``take``.
        """
        found = self._find((component, reason))
        if (
            found is None
            or found.held is None
            or found.held.origin is not origin
            or verdict is not found.verdict
            or fault_class is not found.fault_class
            or abs(at - found.emitted_at) >= COALESCE_S
        ):
            return False
        found.more += count
        found.last_at = max(found.last_at, at)
        return True

    def _emitted(self, key: tuple[str, str], found: OpenFinding, at: float) -> None:
        found.held, found.more = None, 0
        found.emitted_at = at
        self._holding.pop(key, None)

    def _file(self, key: tuple[str, str], found: OpenFinding, events: list[Event]) -> None:
        if found.verdict is Verdict.FAIL:
            kept = self._fails
        else:
            kept = self._warns
            self._quiet_at = _earlier(self._quiet_at, found.last_at + found.quiet_s)
        kept[key] = found
        kept.move_to_end(key)
        if len(kept) > FINDINGS_LIMIT:
            self.evicted += 1
            oldest, forgotten = kept.popitem(last=False)
            events += self._leave(oldest, forgotten)
            if forgotten.verdict is Verdict.WARN:  # otherwise it would stay open forever
                events.append(_quiet(forgotten, found.last_at))

    def _leave(self, key: tuple[str, str], found: OpenFinding) -> list[Event]:
        self._holding.pop(key, None)
        held = _held(found)
        return [] if held is None else [held]

    def clear(self, cleared: AllClear) -> list[Event]:
        """The signs held back for the findings that ``cleared`` ends, then ``cleared`` itself."""
        events: list[Event] = []
        for kept in (self._fails, self._warns):
            for key, found in _ended_by(cleared, kept):
                del kept[key]
                events += self._leave(key, found)
        events.append(cleared)
        return events

    def forget(self, component: str, reasons: tuple[str, ...] = ()) -> None:
        """A person closed these findings (``*``: every component; no reasons: any): drop them, so that the next sign
        opens a new finding."""
        for kept in (self._fails, self._warns):
            for key in [k for k in kept if component in ("*", k[0]) and (not reasons or k[1] in reasons)]:
                del kept[key]
                self._holding.pop(key, None)

    def tick(self, now: float) -> list[Event]:
        """The events due at ``now``: signs held back, and the end of quiet warnings."""
        events: list[Event] = []
        if self._flush_at is not None and self._flush_at <= now:
            self._flush_at = None
            for key in list(self._holding):
                found = self._find(key)
                held = None if found is None else _held(found)
                if found is None or held is None:  # should not happen; do not crash
                    self._holding.pop(key)
                    continue
                due = found.emitted_at + COALESCE_S
                if due <= now:
                    events.append(held)
                    self._emitted(key, found, max(held.at, due))
                else:
                    self._flush_at = _earlier(self._flush_at, due)
        if self._quiet_at is not None and self._quiet_at <= now:
            self._quiet_at = None
            for key, found in list(self._warns.items()):
                due = found.last_at + found.quiet_s
                if due <= now:
                    del self._warns[key]
                    events += self._leave(key, found)
                    events.append(_quiet(found, due))
                else:
                    self._quiet_at = _earlier(self._quiet_at, due)
        return events

    def next_tick(self) -> float | None:
        """When ``tick`` may next return something, in seconds since the epoch."""
        if self._flush_at is None or self._quiet_at is None:
            return self._quiet_at if self._flush_at is None else self._flush_at
        return min(self._flush_at, self._quiet_at)

    def dump(self) -> list[OpenFinding]:
        """Copies of all, oldest first."""
        return [msgspec.structs.replace(f) for kept in (self._fails, self._warns) for f in kept.values()]

    @classmethod
    def load(cls, dumped: list[OpenFinding]) -> "OpenFindings":
        self = cls()
        for found in dumped:
            found = msgspec.structs.replace(found)
            key = found.component, found.reason
            self._file(key, found, [])
            if found.held is not None:
                self._holding[key] = None
                self._flush_at = _earlier(self._flush_at, found.emitted_at + COALESCE_S)
        return self


def _earlier(known: float | None, at: float) -> float:
    return at if known is None else min(known, at)


def _quiet(found: OpenFinding, at: float) -> AllClear:
    return AllClear(component=found.component, at=at, how="quiet", reasons=(found.reason,))


def _ended_by(
    cleared: AllClear, kept: "OrderedDict[tuple[str, str], OpenFinding]"
) -> list[tuple[tuple[str, str], OpenFinding]]:
    if cleared.reasons and not cleared.classes:  # the common case needs no search
        keys = [(cleared.component, reason) for reason in cleared.reasons]
        return [(key, kept[key]) for key in keys if key in kept]
    return [
        (key, found)
        for key, found in kept.items()
        if found.component == cleared.component
        and (not cleared.reasons or found.reason in cleared.reasons)
        and (not cleared.classes or found.fault_class in cleared.classes)
    ]
