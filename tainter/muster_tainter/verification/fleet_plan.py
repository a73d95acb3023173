"""The fleet's plan of heavy checks: from the nodes' states to the checks to request now. Pure functions.

A request takes a slot until it is answered or given up, and the policy's limit of slots is never exceeded. The node
that has waited longest is next. All state is in the NodeHealths, so any replica can plan.
"""

import heapq
from collections import Counter, defaultdict
from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple

from muster_kube.api.objects import Node
from muster_kube.api.times import rfc3339_whole, seconds
from muster_kube.nodehealth import CheckRequest, NodeHealth, ReportedFinding, RequestAnswer
from muster_tainter.faults.desired_state import FAULTY_LABEL, is_managed
from muster_tainter.faults.node_report import FaultKey
from muster_tainter.faults.record.check_history import (
    ID_PREFIX,
    MANAGER,
    CheckRecord,
    final_answer,
    is_ours,
    paused_until,
    pending_request,
    pre_flight_left,
    read_history,
)
from muster_tainter.policy.pools import Pool
from muster_tainter.policy.rules import STARTUP_KEY, Policy
from muster_tainter.policy.sections.heavy_checks import CHECK_NAME, DAY_S

EXPIRES_S = 30.0  # an agent that has not begun by then loses its turn
LOOK_AGAIN_S = 60.0  # the coverage can be missed by time alone
SLICE = 100  # nodes
_NEVER = float("inf")
_NO_SUSPICIONS: Mapping[str, float] = {}
_NO_OTHERS: Mapping[str, int] = {}

# set by Kubernetes' node lifecycle controller on nodes whose kubelet is silent: no agent would answer
_SILENT_TAINTS = frozenset({"node.kubernetes.io/unreachable", "node.kubernetes.io/not-ready"})


Candidate = tuple[int, float, str, str]  # turn, since, node, check: the smallest is next


class TestTurn(IntEnum):
    """The order of nodes. NEW: required before a node's first job. OVERDUE: not tested within the coverage.
    SUSPECT: jobs had trouble there; after the overdue, because jobs can claim anything.
    AFTER_JOB: a job's end left the node idle."""

    NEW = 0
    OVERDUE = 1
    SUSPECT = 2
    AFTER_JOB = 3
    PERIODIC = 4


# plain integers for the loop over the fleet: they compare several times as fast
OVERDUE = int(TestTurn.OVERDUE)
_NO_TURN = len(TestTurn)


class DueCheck(NamedTuple):
    """A check that is due on a node. since: seconds since the epoch when it last measured something, or the node
    joined; after: not before then."""

    check: str
    turn: int
    since: float
    after: float = 0.0


@dataclass(frozen=True, slots=True)
class NodeTestState:
    """One node as input of the plan.

    out:     why nothing is requested there; empty if it may be
    idle:    no job runs there
    request: the plan's in its NodeHealth; answer: its final answer
    extra:   there is more than one request of the plan, by mistake
    wants:   in the order of their turns
    taken:   until when requests of others may run there
    """

    name: str
    pool: str = ""
    out: str = ""
    idle: bool = False
    request: CheckRequest | None = None
    answer: RequestAnswer | None = None
    extra: bool = False
    wants: tuple[DueCheck, ...] = ()
    taken: float = 0.0


@dataclass(frozen=True, slots=True)
class PlanStep:
    """One write. check: request this one. Otherwise delete ``end``, which has ended with ``answer`` (None: no answer);
    noted: record the result."""

    node: str
    check: str = ""
    end: CheckRequest | None = None
    answer: RequestAnswer | None = None
    noted: bool = True


@dataclass(frozen=True)
class FleetPlan:
    """steps: at most one per node. running, waiting: nodes by check, oldest: since when the longest wait lasts.

    beyond: nodes not tested within the coverage; short: those of them that are idle and have no slot
    cap:    of the whole fleet; look_again_at: seconds since the epoch
    """

    steps: tuple[PlanStep, ...] = ()
    running: Mapping[str, int] = field(default_factory=dict)
    waiting: Mapping[str, int] = field(default_factory=dict)
    oldest: Mapping[str, float] = field(default_factory=dict)
    beyond: int = 0
    short: int = 0
    cap: int = 0
    look_again_at: float = _NEVER


def node_test_state(
    node: Node | None, health: NodeHealth, policy: Policy, suspicions: Mapping[str, float] = _NO_SUSPICIONS
) -> NodeTestState:
    """suspicions: by heavy check, since when it is wanted because of findings of external sources, in seconds since the
    epoch; one that has measured something since then is done."""
    name = health.metadata.name
    requests = [request for request in health.spec.requests if is_ours(request)] if health.spec.requests else []
    request = (pending_request(health) or requests[0]) if requests else None
    answer = None if request is None else final_answer(health, request)
    if node is None:
        return NodeTestState(name, out="deleted", request=request, answer=answer, extra=len(requests) > 1)
    pool = policy.pool_of(node.metadata.labels) if policy.pools else None
    out = _out(node, health)
    return NodeTestState(
        name,
        pool=pool.name if pool is not None else "",
        out=out,
        idle=bool(health.status.idle_since),
        request=request,
        answer=answer,
        extra=len(requests) > 1,
        wants=() if out else _wants(node, health, pool, suspicions),
        taken=_taken_until(health) if len(health.spec.requests) > len(requests) else 0.0,
    )


def _out(node: Node, health: NodeHealth) -> str:
    """Why nothing is requested on the node. Faulty nodes are verified elsewhere."""
    meta = node.metadata
    if not is_managed(node):
        return "unmanaged"
    if meta.deletion_timestamp:
        return "deleted"
    if meta.labels.get(FAULTY_LABEL) == "true":
        return "faulty"
    if not health.status.verdict or not health.status.agent.pod_uid:
        return "no agent"
    if any(taint.key in _SILENT_TAINTS for taint in node.spec.taints):
        return "unreachable"
    return ""


def suspicions_of(findings: Mapping[FaultKey, ReportedFinding], policy: Policy) -> dict[str, float]:
    """findings: the node's, of external sources. The result is an input of ``node_test_state``."""
    wanted: dict[str, float] = {}
    for (source, _, _), finding in findings.items():
        for check in policy.suspect_checks.get(source, ()):
            wanted[check] = max(wanted.get(check, 0.0), seconds(finding.first_seen))
    return wanted


def _wants(node: Node, health: NodeHealth, pool: Pool | None, suspicions: Mapping[str, float]) -> tuple[DueCheck, ...]:
    status = health.status
    post_flight = pool.testing.post_flight if pool is not None and status.idle_since else ()
    new: tuple[str, ...] = ()
    if pool is not None and pool.testing.pre_flight and any(taint.key == STARTUP_KEY for taint in node.spec.taints):
        new = pre_flight_left(health, pool.testing.pre_flight)
    if not status.due and not post_flight and not new and not suspicions:
        return ()
    past = read_history(health)
    came = seconds(health.metadata.creation_timestamp)
    held = paused_until(past, status.idle_since)
    unknown = CheckRecord()
    wants: dict[str, DueCheck] = {}
    suspect = [check for check, at in suspicions.items() if seconds(past.checks.get(check, unknown).at) <= at]
    for checks, turn in (
        (new, TestTurn.NEW),
        (suspect, TestTurn.SUSPECT),
        (post_flight, TestTurn.AFTER_JOB),
        (status.due, TestTurn.PERIODIC),
    ):
        for check in checks:
            if check in wants or not CHECK_NAME.fullmatch(check):
                continue
            test = past.checks.get(check, unknown)
            if turn is TestTurn.AFTER_JOB and test.idle == status.idle_since:
                continue
            since = (seconds(test.at) if test.at else 0.0) or came
            if turn is TestTurn.SUSPECT and check not in status.due:
                since = suspicions[check]  # the coverage is about checks that the agent has
            after = seconds(test.after) if test.after else 0.0
            wants[check] = DueCheck(check, int(turn), since, max(held, after))
    return tuple(wants.values())


def _taken_until(health: NodeHealth) -> float:
    """Until when requests of others may run here; 0: none is pending."""
    until = 0.0
    for request in health.spec.requests:
        if not is_ours(request) and final_answer(health, request) is None:
            begun = any(answer.id == request.id for answer in health.status.answers)
            until = max(until, _NEVER if begun or not request.expires else seconds(request.expires))
    return until


def plan_fleet(
    fleet: Iterable[NodeTestState],
    policy: Policy,
    now: float,
    limit_s: Callable[[str], float] = lambda _: 3600.0,
    others: Mapping[str, int] = _NO_OTHERS,
) -> FleetPlan:
    """``now``: seconds since the epoch. ``limit_s``: maximum duration of a check. others: how many nodes each pool has
    that are not in ``fleet``, because nothing is requested there or may be."""
    planning = plan_by_slices(fleet, policy, now, limit_s, others)
    while True:
        try:
            next(planning)
        except StopIteration as end:
            made: FleetPlan = end.value
            return made


def plan_by_slices(
    fleet: Iterable[NodeTestState],
    policy: Policy,
    now: float,
    limit_s: Callable[[str], float],
    others: Mapping[str, int] = _NO_OTHERS,
) -> Generator[None, None, FleetPlan]:
    """The same, yielding after each SLICE nodes: a large fleet takes a tenth of a second."""
    steps: list[PlanStep] = []
    running: Counter[str] = Counter()
    places: Counter[str] = Counter()  # used slots, by pool
    sizes: Counter[str] = Counter(others)
    due: list[str] = []
    oldest: dict[str, float] = {}
    candidates: defaultdict[str, list[Candidate]] = defaultdict(list)
    testing = policy.testing
    late = now - testing.coverage
    look_again = now + LOOK_AGAIN_S
    farthest = now + max(DAY_S, testing.pause)  # a later time comes from a clock that ran ahead
    taken = beyond = overdue = 0
    for number, node in enumerate(fleet, 1):
        if number % SLICE == 0:
            yield
        if node.out != "unmanaged" and node.out != "deleted":
            sizes[node.pool] += 1
        request = node.request
        if request is not None:
            step = _ended(node, request, now, limit_s)
            if step is not None:
                steps.append(step)
            # a cancelled request may still run for a moment, and one that is given up is there until it is deleted
            if step is None or not step.noted or step.answer is None:
                taken += 1
                places[node.pool] += 1
                running[request.checks[0]] += 1
                look_again = min(look_again, seconds(request.expires) + limit_s(request.checks[0]))
            continue  # its result counts once it is recorded
        if not node.wants:
            continue
        first, longest, its_check, broken, idle = _NO_TURN, _NEVER, "", False, node.idle
        for check, turn, since, after in node.wants:
            due.append(check)
            if since < oldest.get(check, _NEVER):
                oldest[check] = since
            if since < late:
                broken = True
                turn = min(turn, OVERDUE)
            if not idle:
                continue
            if now < after <= farthest:
                look_again = min(look_again, after)
            elif turn < first or (turn == first and since < longest):
                first, longest, its_check = turn, since, check
        beyond += broken
        if first == _NO_TURN:
            continue
        if node.taken > now:
            look_again = min(look_again, node.taken)
        else:
            candidates[node.pool].append((first, longest, node.name, its_check))
            overdue += first == OVERDUE
    cap = testing.at_once.of(sum(sizes.values()))
    chosen = _chosen(candidates, policy, cap - taken, places, sizes)
    for turn, _, name, check in chosen:
        steps.append(PlanStep(name, check))
        overdue -= turn == OVERDUE
    return FleetPlan(
        steps=tuple(steps),
        running=running + Counter(check for _, _, _, check in chosen),
        waiting=Counter(due) - Counter(check for _, _, _, check in chosen),
        oldest=oldest,
        beyond=beyond,
        short=overdue,
        cap=cap,
        look_again_at=look_again,
    )


def _ended(node: NodeTestState, request: CheckRequest, now: float, limit_s: Callable[[str], float]) -> PlanStep | None:
    """How to end a pending request; None: keep waiting."""
    if node.answer is not None:
        return PlanStep(node.name, end=request, answer=node.answer)
    if node.out == "unmanaged" or node.extra:
        return PlanStep(node.name, end=request, noted=False)
    expires, limit = seconds(request.expires), limit_s(request.checks[0])
    ran_ahead = expires - now > EXPIRES_S + limit  # the requester's clock was ahead: it would never expire
    return PlanStep(node.name, end=request) if now > expires + limit or ran_ahead else None


def _chosen(
    candidates: Mapping[str, list[Candidate]],
    policy: Policy,
    free: int,
    places: Mapping[str, int],
    sizes: Mapping[str, int],
) -> list[Candidate]:
    """The next candidates, within the limits of the fleet and of each pool."""
    if free <= 0:
        return []
    caps = {
        pool.name: pool.testing.at_once.of(sizes.get(pool.name, 0))
        for pool in policy.pools
        if pool.testing.at_once is not None
    }
    first: list[Candidate] = []
    for pool, waiting in candidates.items():
        room = min(free, caps[pool] - places.get(pool, 0)) if pool in caps else free
        first += heapq.nsmallest(room, waiting)
    return first if len(first) <= free else heapq.nsmallest(free, first)


def request_for(check: str, unique: str, now: float) -> CheckRequest:
    return CheckRequest(
        id=f"{ID_PREFIX}{check}-{unique}", checks=(check,), by=MANAGER, expires=rfc3339_whole(now + EXPIRES_S)
    )
