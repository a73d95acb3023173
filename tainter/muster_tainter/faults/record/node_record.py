"""The tainter's record of a node: the annotation ``muster.dev/faults``, written in the same PATCH as the taints.

Its size is limited to 8 KiB (:func:`fit_record`). Evidence is shortened first. Up to :data:`OPEN_LIMIT` open faults
keep their identity; further ones become one fault per check, which counts them and stays open until a person or a new
boot closes all of them.
"""

from collections.abc import Iterable
from enum import StrEnum
from functools import lru_cache
from typing import Any, TypeVar

import msgspec

from muster_checks.base.vocabulary import shorten
from muster_kube.api.objects import Node, Taint
from muster_kube.api.times import seconds
from muster_kube.nodehealth import ClearEntry, highest_counted
from muster_tainter.faults.occurrence import LOST_CHECK as LOST_CHECK
from muster_tainter.faults.occurrence import REST as REST
from muster_tainter.faults.occurrence import closes, is_counted
from muster_tainter.policy.recovery import FOREIGN_CHECKS
from muster_tainter.policy.rules import NOT_FOR_FAULTS, OUR_PREFIX, SILENT, TaintSpec

ANNOTATION = "muster.dev/faults"
UNREADABLE_ANNOTATION = "muster.dev/faults-unreadable"

SIZE_LIMIT = 8 << 10  # bytes of UTF-8
OPEN_LIMIT = 40  # faults with their own identity
CLOSED_LIMIT = 8
CLOSED_FOR_S = 24 * 3600.0
LOST_REASON = "MemoryLost"
_NAMED = (LOST_CHECK, SILENT[0])
OCCURRENCE_LIMIT = 2**63 - 1  # what the API server stores
PENALTY_LIMIT = 1000.0
PENALTY_LEAST = 0.05  # a smaller penalty has no noticeable hold-down and is dropped
PENALTIES_LIMIT = 24  # checks, and devices that are kept out of use alone
ATTEMPTS_LIMIT = 8  # classes
REF_LIMIT = 1024  # characters
_DECODED_LIMIT = 1024  # texts: in a burst, several parts decode the same records one after the other
_MESSAGE_STEPS = (160, 80, 40, 0)  # bytes of evidence a fault
_BY_LIMIT = 128


class DeviceStage(StrEnum):
    """WANTED: the device's rules are being written; the node keeps its taint until they are there.
    ALONE: only the device is kept out of use. PREVIEW: the node is tainted, and rules without effect show the rest."""

    WANTED = "wanted"
    ALONE = "alone"
    PREVIEW = "preview"


class _Stored(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, kw_only=True):
    pass


class Fault(_Stored, frozen=True):
    """An open fault. (check, component, reason) is its identity.

    occurrence: of the finding that opened it; only closing this number or a higher one closes it
    boot:       the boot in which the finding was last seen; empty if unknown
    since:      RFC 3339, when the tainter opened it; first_seen: when the agent saw the first sign
    raised:     RFC 3339, when it last occurred again while open; empty: never
    rule:       the rule that opened it
    others:     highest number of other nodes with the same finding at the same time; incident: its id
    over:       RFC 3339, since when it is resolved and waits for its hold-down; empty if it is not. how, by: as in
                ClosedFault
    rest:       > 0: stands for this many faults that had no room (component and reason are ``*``)
    address:    PCI address of a NIC that ``component`` names in another way, as the agent reported it; empty: none
    device:     how its device is kept out of use, a :class:`DeviceStage`; empty: not at all, the node is tainted
    board:      UUID of the device, if it was kept out alone and its driver publishes one
    """

    check: str
    component: str
    reason: str
    occurrence: int
    fault_class: str = msgspec.field(default="", name="class")
    verdict: str = "FAIL"
    rule: str = ""
    since: str = ""
    first_seen: str = ""
    boot: str = ""
    origin: str = ""
    message: str = ""
    raised: str = ""
    others: int = 0
    incident: str = ""
    over: str = ""
    how: str = ""
    by: str = ""
    rest: int = 0
    device: str = ""
    address: str = ""
    board: str = ""

    @property
    def key(self) -> tuple[str, str, str]:
        return self.check, self.component, self.reason


class ClosedFault(_Stored, frozen=True):
    """A closed fault: how (boot, driver, quiet, clear, proof, source, person; ``passing`` if it ended before Muster
    acted; ``disowned`` if the agent never made its finding), by whom, and when. rule, since, message: copied from the
    fault, for display.
    """

    check: str
    component: str
    reason: str
    occurrence: int
    closed_at: str = ""
    by: str = ""
    how: str = ""
    rule: str = ""
    since: str = ""
    message: str = ""

    @property
    def key(self) -> tuple[str, str, str]:
        return self.check, self.component, self.reason


class FlapPenalty(_Stored, frozen=True):
    """How often faults of a check were resolved on this node, or this device of it, decayed: ``n`` at the time ``at``
    (RFC 3339)."""

    n: float
    at: str


class RepairAttempt(_Stored, frozen=True):
    """Repairs of this node for faults of one class (:mod:`muster_tainter.repair.repair_plan`).

    n: number of attempts; at: RFC 3339, when the last one began, or ended; stage: of the last one
    ref: the object created for it: its path in the API, or ``annotate KEY…``; empty once it has ended
    """

    n: int
    at: str = ""
    stage: str = ""
    ref: str = ""


class OurTaint(_Stored, frozen=True):
    key: str
    effect: str
    value: str = ""


def as_our_taint(taint: Taint) -> OurTaint:
    return OurTaint(key=taint.key, effect=taint.effect, value=taint.value)


class NodeRecord(msgspec.Struct, frozen=True, kw_only=True):
    """penalty:  by check; of a device that is kept out of use alone, by ``CHECK@UUID`` of its board
    attempts: repairs, by class
    tainted:  RFC 3339, when the node last got its first taint of ours
    others:   keys of the annotation that this version does not know, unchanged
    """

    open: tuple[Fault, ...] = ()
    closed: tuple[ClosedFault, ...] = ()
    ours: tuple[OurTaint, ...] = ()
    penalty: dict[str, FlapPenalty] = {}
    attempts: dict[str, RepairAttempt] = {}
    tainted: str = ""
    others: tuple[tuple[str, bytes], ...] = ()

    @property
    def empty(self) -> bool:
        return not (self.open or self.closed or self.ours or self.penalty or self.attempts or self.others)

    def has_closed(self, key: tuple[str, str, str], occurrence: int) -> bool:
        """Whether this occurrence of ``key`` was closed."""
        return any(closed.key == key and closes(key[0], closed.occurrence, occurrence) for closed in self.closed)


class UnreadableRecord(Exception):
    """The annotation was not written by this or an earlier version."""


_KNOWN = ("open", "closed", "ours", "penalty", "attempts", "tainted")
_raw = msgspec.json.Decoder(dict[str, msgspec.Raw])
_open = msgspec.json.Decoder(tuple[Fault, ...])
_closed = msgspec.json.Decoder(tuple[ClosedFault, ...])
_ours = msgspec.json.Decoder(tuple[OurTaint, ...])
_penalty = msgspec.json.Decoder(dict[str, FlapPenalty])
_attempts = msgspec.json.Decoder(dict[str, RepairAttempt])
_text = msgspec.json.Decoder(str)
_any = msgspec.json.Decoder(object)


def decode_record(text: str | None) -> NodeRecord:
    """The record in an annotation; an empty one without annotation. Raises UnreadableRecord.

    Cached by text: callers must not change its dictionaries.
    """
    return _decoded(text) if text else _EMPTY


_EMPTY = NodeRecord()


@lru_cache(maxsize=_DECODED_LIMIT)
def _decoded(text: str) -> NodeRecord:
    try:
        fields = _raw.decode(text)
        memory = NodeRecord(
            open=_open.decode(fields.get("open", b"[]")),
            closed=_closed.decode(fields.get("closed", b"[]")),
            ours=_ours.decode(fields.get("ours", b"[]")),
            penalty=_penalty.decode(fields.get("penalty", b"{}")),
            attempts=_attempts.decode(fields.get("attempts", b"{}")),
            tainted=_text.decode(fields.get("tainted", b'""')),
            others=tuple((key, _checked(raw)) for key, raw in fields.items() if key not in _KNOWN),
        )
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise UnreadableRecord(str(error)) from error
    if len({fault.key for fault in memory.open}) != len(memory.open):
        raise UnreadableRecord("a fault is open twice")
    if any(not all(fault.key) for fault in memory.open):
        raise UnreadableRecord("a fault has no name")
    numbers = [fault.occurrence for fault in memory.open] + [closed.occurrence for closed in memory.closed]
    if any(not 0 <= number <= OCCURRENCE_LIMIT for number in numbers):
        raise UnreadableRecord("an occurrence is out of range")
    if any(not 0 <= penalty.n <= PENALTY_LIMIT for penalty in memory.penalty.values()):
        raise UnreadableRecord("a penalty is out of range")
    if len(memory.attempts) > ATTEMPTS_LIMIT or any(
        not 0 <= attempt.n <= OCCURRENCE_LIMIT or len(attempt.ref) > REF_LIMIT for attempt in memory.attempts.values()
    ):
        raise UnreadableRecord("an attempt to repair is out of range")
    for fault in memory.open:
        if fault.check == LOST_CHECK:
            _require_possible(lost_taint(fault))
    return memory


def lost_taint(fault: Fault) -> OurTaint:
    """The taint that a fault of :data:`LOST_CHECK` stands for: ``taint/KEY:EFFECT``, its value as the message."""
    key, _, effect = fault.component.removeprefix("taint/").rpartition(":")
    return OurTaint(key=key, effect=effect, value=fault.message)


def _require_possible(taint: OurTaint) -> None:
    """The API would reject every write of the Node with an invalid taint; and taints of others are not ours to set."""
    try:
        TaintSpec.model_validate({"key": taint.key, "value": taint.value, "effect": taint.effect})
    except ValueError as error:
        raise UnreadableRecord(
            f"a fault stands for an invalid taint: {taint.key}={taint.value}:{taint.effect}"
        ) from error
    if not taint.key.startswith(OUR_PREFIX) or taint.key in NOT_FOR_FAULTS:
        raise UnreadableRecord(f"a fault stands for a taint that is not ours: {taint.key}")


def read_record(node: Node) -> NodeRecord:
    """The record of a Node, for display; empty if it is unreadable."""
    try:
        return decode_record(node.metadata.annotations.get(ANNOTATION))
    except UnreadableRecord:
        return NodeRecord()


def highest_closed(memory: NodeRecord) -> tuple[ClearEntry, ...]:
    """For each check, the closed fault with the highest number, as entries of a new NodeHealth's spec.clear.

    An agent that lost its state together with the NodeHealth numbers its findings above these, so that a new occurrence
    is not taken for a closed one. Numbers that no count has reached are left out.
    """
    by_check: dict[str, dict[int, ClosedFault]] = {}
    for closed in memory.closed:
        if closed.reason != REST:
            by_check.setdefault(closed.check, {}).setdefault(closed.occurrence, closed)
    found = [
        numbers.get(highest_counted(numbers) if is_counted(check) else max(numbers))
        for check, numbers in by_check.items()
    ]
    return tuple(
        ClearEntry(check=c.check, component=c.component, occurrence=c.occurrence, by=c.by or c.how, at=c.closed_at)
        for c in found
        if c is not None
    )


def _checked(raw: msgspec.Raw) -> bytes:
    _any.decode(raw)
    return bytes(raw)


def encode_record(memory: NodeRecord) -> str | None:
    """The annotation's text; None if the record is empty."""
    if memory.empty:
        return None
    fields: dict[str, Any] = {}
    for name in _KNOWN:
        values = getattr(memory, name)
        if values:
            fields[name] = values
    fields |= {key: msgspec.Raw(raw) for key, raw in memory.others}
    return msgspec.json.encode(fields).decode()


def record_size(memory: NodeRecord) -> int:
    """Bytes of the annotation."""
    return len((encode_record(memory) or "").encode())


def prune_closed(
    closed: Iterable[ClosedFault], now: float, guarded: frozenset[tuple[str, str, str]]
) -> tuple[ClosedFault, ...]:
    """The newest 8 of the last 24 h, and all whose finding (in ``guarded``) is still reported and must stay closed.

    Only the latest occurrence of each fault is kept. ``closed`` and the result: newest first.
    """
    highest: dict[tuple[str, str, str], ClosedFault] = {}
    for entry in closed:
        known = highest.get(entry.key)
        # of two numbers that do not belong to one count, the one that was closed last is the later one
        if known is None or closes(entry.check, entry.occurrence, known.occurrence):
            highest[entry.key] = entry
    ordered = sorted(highest.values(), key=lambda c: (seconds(c.closed_at), c.occurrence), reverse=True)
    recent = [c for c in ordered if now - seconds(c.closed_at) <= CLOSED_FOR_S][:CLOSED_LIMIT]
    kept = {c.key for c in recent} | guarded
    return tuple(c for c in ordered if c.key in kept)


def fit_record(memory: NodeRecord, limit: int = SIZE_LIMIT) -> NodeRecord:
    """``memory``, reduced to an annotation of at most ``limit`` bytes. Idempotent."""
    memory = _folded(_bounded(memory), OPEN_LIMIT)
    if record_size(memory) <= limit:
        return memory
    for message_bytes in _MESSAGE_STEPS:
        memory = msgspec.structs.replace(
            memory,
            open=tuple(_with_message(f, message_bytes) for f in memory.open),
            closed=tuple(_with_message(c, message_bytes) for c in memory.closed),
        )
        if record_size(memory) <= limit:
            return memory
    memory = msgspec.structs.replace(
        memory,
        open=tuple(msgspec.structs.replace(f, first_seen="", origin="", incident="") for f in memory.open),
        closed=tuple(msgspec.structs.replace(c, rule="", since="", message="") for c in memory.closed),
    )
    if record_size(memory) <= limit:
        return memory
    # drop how and by whom faults were closed; their numbers go last, because they keep closed faults closed
    memory = msgspec.structs.replace(
        memory, closed=tuple(msgspec.structs.replace(c, by="", how="", closed_at="") for c in memory.closed), penalty={}
    )
    for keep in (30, 20, 12, 6, 0):
        if record_size(memory) <= limit:
            return memory
        memory = _folded(memory, keep)
    while record_size(memory) > limit and memory.closed:
        memory = msgspec.structs.replace(memory, closed=memory.closed[: len(memory.closed) * 3 // 4])
    if record_size(memory) > limit:
        memory = msgspec.structs.replace(memory, others=())
    if record_size(memory) > limit:
        memory = msgspec.structs.replace(memory, open=_one(memory.open))
    return memory


def _bounded(memory: NodeRecord) -> NodeRecord:
    if len(memory.penalty) > PENALTIES_LIMIT:
        worst = sorted(memory.penalty.items(), key=lambda item: item[1].n, reverse=True)[:PENALTIES_LIMIT]
        memory = msgspec.structs.replace(memory, penalty=dict(worst))
    if all(len(c.by) <= _BY_LIMIT for c in memory.closed):
        return memory
    return msgspec.structs.replace(
        memory, closed=tuple(msgspec.structs.replace(c, by=shorten(c.by, _BY_LIMIT)) for c in memory.closed)
    )


_AnyFault = TypeVar("_AnyFault", Fault, ClosedFault)


def _with_message(fault: _AnyFault, limit_bytes: int) -> _AnyFault:
    if fault.check == LOST_CHECK:
        return fault  # its message is the value of a taint
    message = shorten(fault.message, limit_bytes) if limit_bytes else ""
    return fault if message == fault.message else msgspec.structs.replace(fault, message=message)


def _folded(memory: NodeRecord, keep: int) -> NodeRecord:
    """At most ``keep`` faults with an identity; the others are counted, one fault per check.

    The oldest keep their identity, after the first of each rule, because a count has only one rule. Faults of a lost
    taint or a silent agent are identified by name and never counted.
    """
    single = [fault for fault in memory.open if not fault.rest]
    named = [fault for fault in single if fault.check in _NAMED]
    if len(single) - len(named) <= keep:
        return memory
    firsts = {fault.rule: fault for fault in reversed(single) if fault.check not in _NAMED}
    ranked = sorted(
        (fault for fault in single if fault.check not in _NAMED),
        key=lambda fault: (fault.check not in FOREIGN_CHECKS, firsts[fault.rule] is not fault),
    )
    kept = {fault.key for fault in (*named, *ranked[:keep])}
    rests = {fault.check: fault for fault in memory.open if fault.rest}
    for fault in single:
        if fault.key not in kept:
            rests[fault.check] = _add(rests.get(fault.check), fault)
    return msgspec.structs.replace(memory, open=(*(fault for fault in single if fault.key in kept), *rests.values()))


def _add(rest: Fault | None, fault: Fault) -> Fault:
    if rest is None:
        return msgspec.structs.replace(
            fault, component=REST, reason=REST, message="", rest=max(fault.rest, 1), device="", board=""
        )
    return msgspec.structs.replace(
        rest, occurrence=max(rest.occurrence, fault.occurrence), rest=rest.rest + max(fault.rest, 1)
    )


def _one(faults: tuple[Fault, ...]) -> tuple[Fault, ...]:
    """One fault for all checks, if there are thousands of checks."""
    total: Fault | None = None
    for fault in faults:
        total = _add(total, fault)
    return () if total is None else (msgspec.structs.replace(total, check=REST),)
