"""The next step in the repair of a tainted node: begin an attempt, create its object, end it, or give up. Pure.

The state of a repair is in the Node's annotation (``attempts``, by class), so any replica can continue it. An attempt
is recorded before its object is created, and the object's name follows from the node, the fault and the attempt's
number. So after a crash the next leader creates the same object under the same name, or learns that it exists.

This module closes no faults: an attempt ends when its faults have been closed elsewhere.
"""

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from muster_checks.base.vocabulary import FaultClass
from muster_kube.api.objects import Node
from muster_kube.api.times import rfc3339_whole, seconds
from muster_tainter.faults.lifecycle import PERSON
from muster_tainter.faults.record.node_record import Fault, NodeRecord, RepairAttempt, read_record
from muster_tainter.policy.pools import Pool
from muster_tainter.policy.repair import LABEL as REPAIR_LABEL
from muster_tainter.policy.repair import REPAIRED, Remedy, Repair
from muster_tainter.policy.rules import Policy
from muster_tainter.repair.drain_plan import faults_to_act_on

GAVE_UP_LABEL = "gave-up"
FORGET_S = 7 * 86_400.0  # after a week without a repair, a class's attempts count from one again
_NEVER = float("inf")
_ORDER: dict[str, int] = {name: place for place, name in enumerate(REPAIRED)}


class RepairStage(StrEnum):
    """The stage of an attempt. BEGUN: recorded, the object may exist; RUNNING: the object exists; DONE: its faults are
    closed; FAILED: they were not closed in time; GAVE_UP: no attempts are left."""

    BEGUN = "begun"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    GAVE_UP = "gave-up"


class RepairAction(StrEnum):
    NOTHING = "nothing"
    BEGIN = "begin"
    MAKE = "make"
    END = "end"
    GIVE_UP = "give up"
    TIDY = "tidy"


@dataclass(frozen=True)
class RepairStep:
    """attempts: the record after the step (MAKE: after the object was created; BEGIN: the executor sets its ``ref``)
    fault_class, fault: of the attempt; faults: all that the attempt may be for
    why: how an attempt ended; look_at: when time alone changes the step
    """

    kind: RepairAction = RepairAction.NOTHING
    fault_class: str = ""
    fault: Fault | None = None
    faults: tuple[Fault, ...] = ()
    attempts: Mapping[str, RepairAttempt] | None = None
    why: str = ""
    look_at: float = _NEVER


def is_active(attempt: RepairAttempt) -> bool:
    return attempt.stage in (RepairStage.BEGUN, RepairStage.RUNNING)


def active_attempt(memory: NodeRecord) -> tuple[str, RepairAttempt] | None:
    """The current attempt with its class; the one of the heaviest class if somebody recorded two."""
    under_way = [(name, attempt) for name, attempt in memory.attempts.items() if is_active(attempt)]
    under_way.sort(key=lambda item: _ORDER.get(item[0], -1))
    return under_way[-1] if under_way else None


def label_of(attempts: Mapping[str, RepairAttempt]) -> str | None:
    """The value of ``muster.dev/repair``: the class under repair, ``gave-up``, or no label."""
    for name, attempt in attempts.items():
        if is_active(attempt):
            return name
    return GAVE_UP_LABEL if any(a.stage == RepairStage.GAVE_UP for a in attempts.values()) else None


def attempt_id(node_uid: str, fault_class: str, fault: Fault, n: int) -> str:
    """Deterministic: the same for the same attempt on every leader."""
    what = "\0".join((node_uid, fault_class, *fault.key, str(fault.occurrence), str(n)))
    return hashlib.sha256(what.encode()).hexdigest()[:20]


def next_step(node: Node, policy: Policy, now: float, *, job_failed: bool = False) -> RepairStep:
    """The next step for ``node``. job_failed: the Job of the current attempt has failed.

    The caller decides whether a BEGIN may be executed (node drained, nothing withheld, room in its pool).
    """
    memory = read_record(node)
    pool = policy.pool_of(node.metadata.labels)
    repair = pool.repair if pool is not None else None
    faults = _repaired(faults_to_act_on(node, memory, policy, now), repair)
    under_way = active_attempt(memory)
    if under_way is not None:
        return _go_on(memory, *under_way, faults, repair, now, job_failed=job_failed)
    if not faults or repair is None:
        return _tidy(node, memory)
    return _begin(memory, faults, repair, now)


def has_place(
    name: str,
    taken: Iterable[str],
    names: Iterable[str],
    node: Callable[[str], Node | None],
    policy: Policy,
) -> bool:
    """Whether another node of its pool may be repaired now. taken: nodes under repair; names: all nodes."""

    def pool_of(name: str) -> Pool | None:
        found = node(name)
        return policy.pool_of(found.metadata.labels) if found is not None else None

    pool = pool_of(name)
    if pool is None or pool.repair is None:
        return False
    cap = pool.repair.at_once
    size = sum(pool_of(each) is pool for each in names) if cap.percent is not None else 0
    return sum(pool_of(each) is pool for each in taken) < cap.of(size)


def _repaired(faults: Iterable[Fault], repair: Repair | None) -> tuple[Fault, ...]:
    """The faults that the pool repairs, worst first. Faults that count several others have no component."""
    if repair is None:
        return ()
    able = [fault for fault in faults if not fault.rest and repair.of(fault.fault_class) is not None]
    return tuple(sorted(able, key=lambda f: (-_ORDER[f.fault_class], seconds(f.since), f.key)))


def _chain(fault_class: str, repair: Repair) -> tuple[tuple[str, Remedy], ...]:
    """The class and those that it escalates to; the policy has no cycles."""
    chain: list[tuple[str, Remedy]] = []
    name: str | None = fault_class
    while name is not None:
        remedy = repair.of(name)
        if remedy is None:
            break
        chain.append((str(name), remedy))
        name = remedy.escalate
    return tuple(chain)


def _go_on(
    memory: NodeRecord,
    name: str,
    attempt: RepairAttempt,
    faults: tuple[Fault, ...],
    repair: Repair | None,
    now: float,
    *,
    job_failed: bool,
) -> RepairStep:
    begun = seconds(attempt.at)
    remedy = repair.of(name) if repair is not None else None
    # excludes faults that opened after the attempt began
    own = tuple(
        fault
        for fault in faults
        if repair is not None
        and any(each == name for each, _ in _chain(fault.fault_class, repair))
        and int(seconds(fault.since)) <= begun
    )
    if not own or remedy is None:
        return RepairStep(
            RepairAction.END,
            name,
            attempts=_ended(memory, name, attempt, RepairStage.DONE, now),
            why=_how_closed(memory),
        )
    ends = begun + remedy.wait
    failed = ""
    if job_failed and name == FaultClass.RESET:  # a Job that reboots its own node may fail because of the reboot
        failed = "its Job has failed"
    elif now >= ends or begun > now + remedy.wait:  # or the clock was set back too far
        failed = f"proof not passed within {remedy.wait:g} s"
    if failed:
        after = _ended(memory, name, attempt, RepairStage.FAILED, now)
        return RepairStep(RepairAction.END, name, own[0], own, after, failed)
    if attempt.stage == RepairStage.BEGUN:
        made = RepairAttempt(n=attempt.n, at=attempt.at, stage=RepairStage.RUNNING, ref=attempt.ref)
        return RepairStep(RepairAction.MAKE, name, own[0], own, {**memory.attempts, name: made}, look_at=ends)
    return RepairStep(RepairAction.NOTHING, name, own[0], own, look_at=ends)


def _ended(
    memory: NodeRecord, name: str, attempt: RepairAttempt, stage: RepairStage, now: float
) -> dict[str, RepairAttempt]:
    if stage is RepairStage.DONE and _cleared_by_person(memory):
        return {}
    # not before it began, in case the clock was set back since: its faults would seem to have opened after it
    at = max(now, seconds(attempt.at))
    return {**memory.attempts, name: RepairAttempt(n=attempt.n, at=rfc3339_whole(at), stage=stage)}


def _begin(memory: NodeRecord, faults: tuple[Fault, ...], repair: Repair, now: float) -> RepairStep:
    due: list[tuple[str, Fault]] = []
    used_up: list[tuple[str, Fault]] = []
    for fault in faults:
        chain = _chain(fault.fault_class, repair)
        name = next(
            (name for name, each in chain if _used(memory.attempts.get(name), faults, now) < each.attempts), None
        )
        if name is None:
            used_up.append((chain[-1][0], fault))
        else:
            due.append((name, fault))
    # the first fault of the heaviest class; a heavier repair may also fix what was given up
    name, fault = max(due or used_up, key=lambda item: _ORDER[item[0]])
    if used_up and (not due or _ORDER[name] <= max(_ORDER[each] for each, _ in used_up)):
        return _give_up(memory, faults, *max(used_up, key=lambda item: _ORDER[item[0]]), repair, now)
    # not before the fault's own time, in case the clock was set back since
    at = max(now, *(seconds(each.since) for each in faults))
    attempt = RepairAttempt(
        n=_used(memory.attempts.get(name), faults, now) + 1, at=rfc3339_whole(at), stage=RepairStage.BEGUN
    )
    return RepairStep(RepairAction.BEGIN, name, fault, faults, {**memory.attempts, name: attempt})


def _give_up(
    memory: NodeRecord, faults: tuple[Fault, ...], name: str, fault: Fault, repair: Repair, now: float
) -> RepairStep:
    known = memory.attempts.get(name, RepairAttempt(n=0))
    if known.stage == RepairStage.GAVE_UP:
        return RepairStep(RepairAction.NOTHING, name, fault, faults)
    given_up = RepairAttempt(n=known.n, at=rfc3339_whole(now), stage=RepairStage.GAVE_UP)
    tried = ", ".join(f"{each} {remedy.attempts} times" for each, remedy in _chain(fault.fault_class, repair))
    return RepairStep(RepairAction.GIVE_UP, name, fault, faults, {**memory.attempts, name: given_up}, f"tried {tried}")


def _used(attempt: RepairAttempt | None, faults: tuple[Fault, ...], now: float) -> int:
    """Number of attempts that count. Those of a fault that is still open are never dropped: names would repeat."""
    if attempt is None:
        return 0
    ended = seconds(attempt.at)
    quiet = now - ended >= FORGET_S and all(seconds(fault.since) > ended for fault in faults)
    return 0 if quiet and attempt.stage != RepairStage.GAVE_UP else attempt.n


def _tidy(node: Node, memory: NodeRecord) -> RepairStep:
    """Nothing needs repair (any more): remove the give-up. Attempts count from one again after a person cleared the
    node."""
    if memory.attempts and _cleared_by_person(memory):
        return RepairStep(RepairAction.TIDY, attempts={})
    given_up = [name for name, attempt in memory.attempts.items() if attempt.stage == RepairStage.GAVE_UP]
    if given_up:
        after = dict(memory.attempts)
        for name in given_up:
            after[name] = RepairAttempt(n=after[name].n, at=after[name].at, stage=RepairStage.DONE)
        return RepairStep(RepairAction.TIDY, attempts=after)
    if REPAIR_LABEL in node.metadata.labels:
        return RepairStep(RepairAction.TIDY, attempts=memory.attempts)
    return RepairStep()


def _cleared_by_person(memory: NodeRecord) -> bool:
    latest = max(memory.closed, key=lambda closed: seconds(closed.closed_at), default=None)
    return not memory.open and latest is not None and latest.how == PERSON


def _how_closed(memory: NodeRecord) -> str:
    latest = max(memory.closed, key=lambda closed: seconds(closed.closed_at), default=None)
    return f"closed ({latest.how})" if latest is not None else "its faults are no longer open"
