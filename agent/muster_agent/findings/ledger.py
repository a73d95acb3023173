"""The findings of one check: the open ones, the cleared ones, and their occurrence numbers.

Pure: signs in, findings out, with the times of the signs. One counter per check numbers all occurrences, so a number
never refers to two of them, also after clears, restarts and loss of state.
"""

import bisect
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum

import msgspec

from muster_agent.findings.made_findings import MadeFindings
from muster_agent.findings.replayed_signs import ReplayedSigns
from muster_agent.findings.stored_ledger import COUNTER_LIMIT, ClearedBy, ClearedFinding, StoredLedger, renumbered
from muster_checks.base.declaration import AllClear, Sign
from muster_checks.base.vocabulary import (
    FINDINGS_LIMIT,
    FaultClass,
    Finding,
    Origin,
    Result,
    Verdict,
    severity,
    shorten,
    worst,
)
from muster_kube.api.times import seconds
from muster_kube.nodehealth import CLEARED_LIMIT, DISOWNED_LIMIT, OCCURRENCE_GAP, ClearEntry, ReportedFinding, is_later

OPEN_LIMIT = 4 * FINDINGS_LIMIT  # more than are published, so that the published ones are the worst
TIMES_DIFFER_S = 0.001  # published times have milliseconds

COMPONENT_LIMIT = REASON_LIMIT = 128  # characters, as NodeHealth's schema has it


class TransitionKind(StrEnum):
    OPENED = "opened"
    WORSENED = "worsened"
    CLEARED = "cleared"


class Transition(msgspec.Struct, frozen=True):
    """A change of a finding, for the log. line: the complete line that caused it."""

    step: TransitionKind
    finding: Finding
    line: str = ""
    how: str = ""


def publishing_rank(finding: Finding) -> tuple[int, bool, int]:
    """Sort key: the worst first, then lines of the kernel before those from user space, then the oldest first.

    User space can write any number of invented components into the kernel log; they must not displace real ones.
    """
    return -severity(finding.verdict), finding.origin is Origin.USER, finding.occurrence


class Ledger:
    """The findings of ``check`` within the boot ``boot_id``."""

    def __init__(self, check: str, boot_id: str, memory: StoredLedger | None = None) -> None:
        """memory: the saved ledger. Findings of another boot are dropped; the counter continues."""
        self.check = check
        self.boot_id = boot_id
        self._open: dict[tuple[str, str], Finding] = {}
        self._latest: dict[tuple[str, str], dict[Verdict, Sign]] = {}
        self._over: deque[ClearedFinding] = deque(maxlen=CLEARED_LIMIT)
        self._disowned: deque[ClearedFinding] = deque(maxlen=DISOWNED_LIMIT)
        self._made = MadeFindings()
        self._replay = ReplayedSigns()
        self._counter = 0
        self.revision = 0
        """Increases with every change, also of counts."""
        if memory is None:
            return
        if memory.counter > COUNTER_LIMIT:
            memory = renumbered(memory)
        self._counter = memory.counter
        for entry in memory.over:
            (self._disowned if entry.how == ClearedBy.DISOWNED else self._over).append(entry)
        self._made = MadeFindings(memory.made) if memory.made is not None else _made_before(memory)
        if memory.boot_id == boot_id:
            self._open = {finding.key: finding for finding in memory.findings}
            for sign in memory.latest:
                self._latest.setdefault((sign.component, sign.reason), {})[sign.verdict] = sign
            self._replay = ReplayedSigns(memory.replayed, memory.replay_floor)

    @property
    def counter(self) -> int:
        """The highest number used so far."""
        return self._counter

    @property
    def replaying(self) -> bool:
        """True while old signs are compared with the known ones."""
        return bool(self._replay)

    def memory(self) -> StoredLedger:
        replayed, floor = self._replay.memory()
        return StoredLedger(
            boot_id=self.boot_id,
            counter=self._counter,
            findings=tuple(self._open.values()),
            latest=tuple(sign for signs in self._latest.values() for sign in signs.values()),
            over=self.over(),
            replayed=replayed,
            replay_floor=floor,
            made=self._made.memory(),
        )

    def open_findings(self) -> list[Finding]:
        """All open findings, the worst first."""
        return sorted(self._open.values(), key=publishing_rank)

    def published(self) -> tuple[tuple[Finding, ...], int]:
        """The worst :data:`FINDINGS_LIMIT` findings, and how many more there are."""
        findings = self.open_findings()
        return tuple(findings[:FINDINGS_LIMIT]), max(0, len(findings) - FINDINGS_LIMIT)

    def over(self) -> tuple[ClearedFinding, ...]:
        """The cleared findings, oldest first, at most :data:`CLEARED_LIMIT`; then the disowned ones."""
        return (*self._over, *self._disowned)

    def verdict(self) -> Verdict:
        return worst([finding.verdict for finding in self._open.values()])

    def raise_floor(self, occurrence: int) -> bool:
        """Make all future numbers higher than ``occurrence``. False if that is far above the last number: it is
        refused, and closes no future number anyway (see :func:`muster_kube.nodehealth.is_later`)."""
        if occurrence <= self._counter:
            return True
        if occurrence - self._counter > OCCURRENCE_GAP:
            return False
        self._counter = occurrence
        self.revision += 1
        return True

    def take(self, batch: Iterable[Sign | AllClear]) -> list[Transition]:
        """Apply one batch of a stream, in its order."""
        transitions: list[Transition] = []
        for event in batch:
            if isinstance(event, Sign):
                transitions += self._take_sign(event)
            else:
                transitions += self._take_all_clear(event)
        return transitions

    def take_run(self, result: Result) -> list[Transition]:
        """Apply one run of a snapshot check. Findings that it no longer has are cleared, if the run could check them.

        A run without measurements (UNKNOWN, SKIP) clears nothing. What it could not measure, a component, its group or
        the host, keeps its findings, except those for which the run has PASS. A FAIL is cleared only if the run
        measured its component, or found the group of that component or the host sound, because a failed disk that has
        left the bus is missing, not healthy. SKIP for a finding (a test that did not run this time) keeps it open.
        """
        at = result.started + result.duration_s
        bad = [finding for finding in result.findings if finding.verdict not in (Verdict.PASS, Verdict.SKIP)]
        transitions: list[Transition] = []
        if result.verdict is not Verdict.SKIP and (bad or result.verdict is not Verdict.UNKNOWN):
            found = {finding.key for finding in bad}
            reported = [finding for finding in result.findings if finding.verdict is not Verdict.SKIP]
            measured = {finding.component for finding in reported if finding.verdict is not Verdict.UNKNOWN}
            ailing = {each.component for each in reported if each.verdict in (Verdict.FAIL, Verdict.UNKNOWN)}
            healthy = {each.component for each in reported if each.verdict is Verdict.PASS} - ailing
            skipped = {finding.key for finding in result.findings if finding.verdict is Verdict.SKIP}
            blind = {finding.component for finding in bad if finding.verdict is Verdict.UNKNOWN}
            sound = {finding.key for finding in result.findings if finding.verdict is Verdict.PASS}
            for key, finding in list(self._open.items()):
                whole = {finding.component.partition("/")[0], "host"}
                blocked = finding.verdict is not Verdict.UNKNOWN and not blind.isdisjoint({finding.component, *whole})
                looked = finding.component in measured or not whole.isdisjoint(healthy)
                if finding.verdict is Verdict.FAIL and reported and not looked:
                    continue
                if key not in found | skipped and (key in sound or not blocked):
                    transitions.append(self._close(finding, ClearedBy.RUN, at, ""))
        for finding in bad:
            transitions += self._take_sign(
                Sign(
                    component=finding.component,
                    reason=finding.reason,
                    verdict=finding.verdict,
                    message=finding.message,
                    at=at,
                    fault_class=finding.fault_class,
                    measurements=finding.measurements,
                )
            )
        return transitions

    def apply_clears(
        self, clears: Sequence[ClearEntry], at: float, published: Mapping[tuple[str, str, int], float] | None = None
    ) -> list[Transition]:
        """Clear the findings that users request to clear, as they were when the entry was written.

        at: now; published: when each finding (component, reason, occurrence) was last seen, according to the object
            that has the entries. Every status write names the version that it replaces, so this status was there
            when a new entry was written.

        Signs that came after the request belong to a new occurrence, even if this agent had not received it yet. Later
        numbers are higher than the requested ones, so applying the same entries again does not clear new occurrences.
        """
        transitions: list[Transition] = []
        for clear in clears:
            if clear.check != self.check:
                continue
            self.raise_floor(clear.occurrence)
            for finding in list(self._open.values()):
                if clear.component in ("*", finding.component) and not is_later(finding.occurrence, clear.occurrence):
                    seen = (published or {}).get((*finding.key, finding.occurrence), 0.0)
                    transitions += self._clear(finding, max(min(seconds(clear.at), at), seen), at)
        return transitions

    def _clear(self, finding: Finding, given: float, at: float) -> list[Transition]:
        """Apply a request of the time ``given`` to an open finding."""
        later = self._signs_after(finding, given)
        if later and finding.first_seen > given + TIMES_DIFFER_S:
            self._renumber(finding)  # all of it is new: only its number must not be one that the request names
            return []
        closed_at = min(given, at)  # what was seen may have a time of the future, from a clock that was wrong
        self._replay.close(finding.key, closed_at)
        transitions = [self._close(finding, ClearedBy.REQUEST, closed_at, "")]
        for sign in later:
            transitions += self._add_sign(sign)
        return transitions

    def _signs_after(self, finding: Finding, given: float) -> list[Sign]:
        """What is known of the signs of an open finding after ``given``: the last one of each verdict, oldest first."""
        if finding.last_seen <= given + TIMES_DIFFER_S:
            return []
        known = [sign for sign in self._latest.get(finding.key, {}).values() if sign.at > given + TIMES_DIFFER_S]
        if not known:  # of a state file without signs
            known = [
                Sign(
                    component=finding.component,
                    reason=finding.reason,
                    verdict=finding.verdict,
                    message=finding.message,
                    at=finding.last_seen,
                    fault_class=finding.fault_class,
                    measurements=finding.measurements,
                    origin=finding.origin,
                )
            ]
        return sorted(known, key=lambda sign: sign.at)

    def disown(self, reported: Iterable[ReportedFinding], at: float, *, published: bool) -> tuple[str, ...]:
        """Close reported findings that this ledger never made; returns them, each as one line.

        published: this process has published since it started, so ``reported`` was written after that by somebody else

        A finding that is open here stays open. It gets a number above the reported one, so that the tainter takes what
        is published next for later, and closes what was reported.
        """
        foreign = []
        before = {(entry.component, entry.reason, entry.occurrence) for entry in self._disowned}
        for entry in reported:
            key, number = (entry.component, entry.reason), entry.occurrence
            known = self._open.get(key)
            if known is None:
                disowned, outnumbered = self._made.is_foreign(key, number), False
            else:
                disowned = published and number == known.occurrence and _more_than_made(entry, known)
                outnumbered = 0 < number - known.occurrence <= OCCURRENCE_GAP
            invalid = number < 1 or not all(key) or "*" in key  # the tainter opens no fault for it
            if invalid or (*key, number) in before or not (disowned or outnumbered):
                continue
            foreign.append(f"{entry.component} {entry.reason} (occurrence {number})")
            self.revision += 1
            self.raise_floor(number)
            if known is not None:
                self._renumber(known)
            if disowned:
                how = ClearedBy.DISOWNED
                self._disowned.append(
                    ClearedFinding(component=key[0], reason=key[1], occurrence=number, how=how, at=at)
                )
        return tuple(foreign)

    def _renumber(self, finding: Finding) -> None:
        """Give an open finding the next number."""
        self._counter += 1
        self.revision += 1
        self._open[finding.key] = msgspec.structs.replace(finding, occurrence=self._counter)
        self._made.note(finding.key, self._counter)

    def end_replay(self) -> None:
        """The log of before the start has been read completely, so all further signs are new."""
        if self._replay:
            self._replay = ReplayedSigns()
            self.revision += 1

    def _take_sign(self, sign: Sign) -> list[Transition]:
        sign = _bounded(sign)
        key = (sign.component, sign.reason)
        if self._replay and self._replay.knows_sign(key, sign.at):
            return []
        return self._add_sign(sign)

    def _add_sign(self, sign: Sign) -> list[Transition]:
        key = (sign.component, sign.reason)
        self.revision += 1
        known = self._open.get(key)
        if known is None:
            return self._fire(sign)
        self._keep(sign)
        worse = severity(sign.verdict) > severity(known.verdict)
        at_least_as_bad = severity(sign.verdict) >= severity(known.verdict)
        finding = msgspec.structs.replace(
            known,
            verdict=sign.verdict if worse else known.verdict,
            message=shorten(sign.message) if at_least_as_bad else known.message,
            fault_class=sign.fault_class
            if at_least_as_bad and sign.fault_class is not FaultClass.NONE
            else known.fault_class,
            measurements=sign.measurements if at_least_as_bad else known.measurements,
            first_seen=min(known.first_seen, sign.at),
            last_seen=max(known.last_seen, sign.at),
            count=known.count + sign.count,
            origin=Origin.USER if Origin.USER in (sign.origin, known.origin) else sign.origin,
        )
        self._open[key] = finding
        return [Transition(TransitionKind.WORSENED, finding, sign.line)] if worse else []

    def _fire(self, sign: Sign) -> list[Transition]:
        finding = Finding(
            component=sign.component,
            verdict=sign.verdict,
            reason=sign.reason,
            message=shorten(sign.message),
            fault_class=sign.fault_class,
            measurements=sign.measurements,
            first_seen=sign.at,
            last_seen=sign.at,
            count=sign.count,
            occurrence=self._counter + 1,
            origin=sign.origin,
        )
        if len(self._open) >= OPEN_LIMIT:
            least = max(self._open.values(), key=publishing_rank)
            if publishing_rank(least) <= publishing_rank(finding):
                return []
            self._remove(least)
        self._counter += 1
        self._open[finding.key] = finding
        self._made.note(finding.key, finding.occurrence)
        self._keep(sign)
        return [Transition(TransitionKind.OPENED, finding, sign.line)]

    def _take_all_clear(self, clear: AllClear) -> list[Transition]:
        transitions: list[Transition] = []
        for key, finding in list(self._open.items()):
            if (
                finding.component != clear.component[:COMPONENT_LIMIT]
                or (clear.reasons and finding.reason not in clear.reasons)
                or (clear.classes and finding.fault_class not in clear.classes)
                # a quiet period does not clear a FAIL (docs/decisions.md), also not one that began as a WARN
                or (clear.how == ClearedBy.QUIET and finding.verdict is Verdict.FAIL)
                or (self._replay and self._replay.predates(key, clear.at))
            ):
                continue
            self._replay.forget(key)
            transitions.append(self._close(finding, clear.how, clear.at, clear.line))
        return transitions

    def _close(self, finding: Finding, how: str, at: float, line: str) -> Transition:
        self.revision += 1
        self._remove(finding)
        if how == ClearedBy.REQUEST:
            self._made.note_request(finding.key)
        over = ClearedFinding(
            component=finding.component,
            reason=finding.reason,
            occurrence=finding.occurrence,
            how=how,
            at=at,
            message=shorten(line) if line else finding.message,
        )
        # sorted, because streams may report older events than a request that was applied before
        entries = sorted(self._over, key=lambda entry: entry.at)
        bisect.insort(entries, over, key=lambda entry: entry.at)
        self._over = deque(entries[-CLEARED_LIMIT:], maxlen=CLEARED_LIMIT)
        return Transition(TransitionKind.CLEARED, finding, line, how)

    def _keep(self, sign: Sign) -> None:
        """Remember ``sign`` if it is the last one of its verdict: a request may turn out to be older than it."""
        signs = self._latest.setdefault((sign.component, sign.reason), {})
        last = signs.get(sign.verdict)
        if last is None or last.at <= sign.at:
            signs[sign.verdict] = msgspec.structs.replace(sign, message=shorten(sign.message), line="")

    def _remove(self, finding: Finding) -> None:
        del self._open[finding.key]
        self._latest.pop(finding.key, None)


def _made_before(memory: StoredLedger) -> MadeFindings:
    """What is known of the findings of an earlier agent: all of them, if each of its numbers is accounted for."""
    made = MadeFindings()
    numbers = set()
    for finding in memory.findings:
        numbers.add(finding.occurrence)
        made.note(finding.key, finding.occurrence)
    for over in memory.over:
        numbers.add(over.occurrence)
        if over.how != ClearedBy.DISOWNED:
            made.note((over.component, over.reason), over.occurrence)
            if over.how == ClearedBy.REQUEST:
                made.note_request((over.component, over.reason))
    made.unknown_up_to = next((n for n in range(memory.counter, 0, -1) if n not in numbers), 0)
    return made


def _more_than_made(reported: ReportedFinding, known: Finding) -> bool:
    """Whether the report of an open finding is worse than it is, or asks for something else."""
    if reported.verdict == known.verdict:
        return reported.fault_class != known.fault_class
    return reported.verdict in list(Verdict) and severity(Verdict(reported.verdict)) > severity(known.verdict)


def _bounded(sign: Sign) -> Sign:
    """Truncate names, which come from log lines that any process may write: too long ones would make the API server
    reject every write of the status."""
    if len(sign.component) <= COMPONENT_LIMIT and len(sign.reason) <= REASON_LIMIT:
        return sign
    return msgspec.structs.replace(sign, component=sign.component[:COMPONENT_LIMIT], reason=sign.reason[:REASON_LIMIT])
