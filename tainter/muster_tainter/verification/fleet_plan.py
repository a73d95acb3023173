"""The fleet's plan of heavy checks: from what the nodes say to what is asked of which node now. Pure.

A place is taken from the moment a request is made until it is answered or given up, and there are never more than the
policy's cap; who has waited longest comes first. All that it goes by stands in the NodeHealths, so it makes no
difference which replica plans.
"""

import heapq
from collections import Counter, defaultdict
from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple

from muster_kube.api.objects import Node
from muster_kube.api.times import rfc3339_whole, seconds
from muster_kube.nodehealth import CheckRequest, NodeHealth, RequestAnswer
from muster_tainter.faults.check_history import (
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
from muster_tainter.faults.desired_state import FAULTY_LABEL, is_managed
from muster_tainter.policy.heavy_checks import CHECK_NAME, DAY_S
from muster_tainter.policy.pools import Pool
from muster_tainter.policy.rules import STARTUP_KEY, Policy

EXPIRES_S = 30.0  # an agent that has not begun by then has lost its turn
LOOK_AGAIN_S = 60.0  # promises are broken by the clock alone
SLICE = 100  # nodes
_NEVER = float("inf")

# set by Kubernetes' node lifecycle controller on nodes whose kubelet is silent: nobody would answer there
_SILENT_TAINTS = frozenset({"node.kubernetes.io/unreachable", "node.kubernetes.io/not-ready"})


Candidate = tuple[int, float, str, str]  # turn, since, node, check: the least comes first


class TestTurn(IntEnum):
    """Who comes before whom. NEW: to be passed before a node's first job. OVERDUE: the coverage promise is broken.
    AFTER_JOB: a job's end left the node idle."""

    NEW = 0
    OVERDUE = 1
    AFTER_JOB = 2
    PERIODIC = 3


# plain numbers where a fleet is gone through: they compare several times as fast
OVERDUE = int(TestTurn.OVERDUE)
_NO_TURN = len(TestTurn)


class DueCheck(NamedTuple):
    """A check that is to run on a node. since: seconds since the epoch when it measured something last, or the node
    came; after: not before then."""

    check: str
    turn: int
    since: float
    after: float = 0.0


@dataclass(frozen=True, slots=True)
class NodeTestState:
    """One node as the plan sees it.

    out:     why it is asked for nothing; empty: it may be
    idle:    nobody works there
    request: ours in its NodeHealth; answer: what came of it, once that is final
    extra:   more requests of ours than one, by mistake
    wants:   in the order of their turns
    taken:   somebody else's request is under way there
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
    """One write. check: ask for this one. Else ``end`` is over and deleted, with ``answer`` (None: there is none);
    noted: remember what came of it."""

    node: str
    check: str = ""
    end: CheckRequest | None = None
    answer: RequestAnswer | None = None
    noted: bool = True


@dataclass(frozen=True)
class FleetPlan:
    """steps: by node, each at most once. running, waiting: nodes by check, oldest: the longest wait, since when.

    beyond: nodes whose promise is broken; short: those of them that are idle and find no place
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


def node_test_state(node: Node | None, health: NodeHealth, policy: Policy) -> NodeTestState:
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
        wants=() if out else _wants(node, health, pool),
        taken=_taken_until(health) if len(health.spec.requests) > len(requests) else 0.0,
    )


def _out(node: Node, health: NodeHealth) -> str:
    """Why nothing is asked of the node. Its faults' proof is asked for by others."""
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


def _wants(node: Node, health: NodeHealth, pool: Pool | None) -> tuple[DueCheck, ...]:
    status = health.status
    post_flight = pool.testing.post_flight if pool is not None and status.idle_since else ()
    new: tuple[str, ...] = ()
    if pool is not None and pool.testing.pre_flight and any(taint.key == STARTUP_KEY for taint in node.spec.taints):
        new = pre_flight_left(health, pool.testing.pre_flight)
    if not status.due and not post_flight and not new:
        return ()
    past = read_history(health)
    came = seconds(health.metadata.creation_timestamp)
    held = paused_until(past, status.idle_since)
    unknown = CheckRecord()
    wants: dict[str, DueCheck] = {}
    for checks, turn in ((new, TestTurn.NEW), (post_flight, TestTurn.AFTER_JOB), (status.due, TestTurn.PERIODIC)):
        for check in checks:
            if check in wants or not CHECK_NAME.fullmatch(check):
                continue
            test = past.checks.get(check, unknown)
            if turn is TestTurn.AFTER_JOB and test.idle == status.idle_since:
                continue
            since = (seconds(test.at) if test.at else 0.0) or came
            after = seconds(test.after) if test.after else 0.0
            wants[check] = DueCheck(check, int(turn), since, max(held, after))
    return tuple(wants.values())


def _taken_until(health: NodeHealth) -> float:
    """Until when somebody else's requests may run here; 0: none is under way."""
    until = 0.0
    for request in health.spec.requests:
        if not is_ours(request) and final_answer(health, request) is None:
            begun = any(answer.id == request.id for answer in health.status.answers)
            until = max(until, _NEVER if begun or not request.expires else seconds(request.expires))
    return until


def plan_fleet(
    fleet: Iterable[NodeTestState], policy: Policy, now: float, limit_s: Callable[[str], float] = lambda _: 3600.0
) -> FleetPlan:
    """``now``: seconds since the epoch. ``limit_s``: how long a check may take, once it has begun."""
    planning = plan_by_slices(fleet, policy, now, limit_s)
    while True:
        try:
            next(planning)
        except StopIteration as end:
            made: FleetPlan = end.value
            return made


def plan_by_slices(
    fleet: Iterable[NodeTestState], policy: Policy, now: float, limit_s: Callable[[str], float]
) -> Generator[None, None, FleetPlan]:
    """The same, with a halt after each SLICE nodes: a large fleet takes a tenth of a second."""
    steps: list[PlanStep] = []
    running: Counter[str] = Counter()
    places: Counter[str] = Counter()  # taken, by pool
    sizes: Counter[str] = Counter()
    due: list[str] = []
    oldest: dict[str, float] = {}
    candidates: defaultdict[str, list[Candidate]] = defaultdict(list)
    testing = policy.testing
    late = now - testing.coverage
    look_again = now + LOOK_AGAIN_S
    farthest = now + max(DAY_S, testing.pause)  # nobody is told to wait beyond it but by a clock that ran ahead
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
            # what is called off may run for a moment yet, and what is given up stands there until that is written
            if step is None or not step.noted or step.answer is None:
                taken += 1
                places[node.pool] += 1
                running[request.checks[0]] += 1
                look_again = min(look_again, seconds(request.expires) + limit_s(request.checks[0]))
            continue  # what came of it counts once it is noted
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
    """What is to be done about a request that stands there; None: wait on."""
    if node.answer is not None:
        return PlanStep(node.name, end=request, answer=node.answer)
    if node.out == "unmanaged" or node.extra:
        return PlanStep(node.name, end=request, noted=False)
    expires, limit = seconds(request.expires), limit_s(request.checks[0])
    ran_ahead = expires - now > EXPIRES_S + limit  # the clock of who asked: it would keep its place for ever
    return PlanStep(node.name, end=request) if now > expires + limit or ran_ahead else None


def _chosen(
    candidates: Mapping[str, list[Candidate]],
    policy: Policy,
    free: int,
    places: Mapping[str, int],
    sizes: Mapping[str, int],
) -> list[Candidate]:
    """Those whose turn it is, within the fleet's cap and each pool's own."""
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
