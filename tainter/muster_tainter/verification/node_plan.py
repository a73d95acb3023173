"""The verification of a faulty node: pending requests, ended requests, and when to look again. Pure functions.

All state is in the Node (its open faults) and the NodeHealth (requests, answers, and failures in the annotation
``muster.dev/proofs``), so any replica can continue. :mod:`muster_tainter.faults.lifecycle` decides what an answer means
for a fault; this module closes nothing.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

import msgspec

from muster_checks.base.vocabulary import Verdict
from muster_kube.api.objects import Node
from muster_kube.api.times import rfc3339_whole, seconds
from muster_kube.nodehealth import CLEAR_LIMIT, REQUESTS_LIMIT, CheckRequest, ClearEntry, NodeHealth, RequestAnswer
from muster_tainter.faults.desired_state import is_managed
from muster_tainter.faults.lifecycle import PERSON, proof_for
from muster_tainter.faults.manual_clear import merge_clears
from muster_tainter.faults.node_report import NodeReport, UnusableHealth, read_report
from muster_tainter.faults.occurrence import closes
from muster_tainter.faults.policy_match import FaultPolicy, confirmed_at, match_policy
from muster_tainter.faults.record.check_history import backoff_s, final_answer
from muster_tainter.faults.record.node_record import ClosedFault, Fault, NodeRecord, read_record
from muster_tainter.faults.record.verification_attempts import VerificationAttempts, limit_attempts, read_attempts
from muster_tainter.policy.recovery import LOG_CHECKS, MANAGER, ProofCheck, ProofRequest, read_proof_request
from muster_tainter.policy.rules import OUR_PREFIX, Policy
from muster_tainter.policy.sections.heavy_checks import DAY_S

LABEL = OUR_PREFIX + "proving"  # of the NodeHealth
AT_ONCE = 4  # requests per node: the plan, people and their programs need some of its sixteen
EXPIRES_S = 600.0  # requested only when it can run; allows for a restart of the agent, or another check before it
BUSY_PAUSE_S = 60.0
LONGEST_INTERVAL_S = 86_400.0  # the maximum that an agent accepts
_RESULT_LIMIT = 80  # characters
_LATEST = 10**11  # an id has twelve digits for its time
_SLACK_S = 60.0  # between the clocks of two leaders
_NEVER = float("inf")
# set by Kubernetes' node lifecycle controller on nodes whose kubelet is silent: no agent would answer
_SILENT_TAINTS = frozenset({"node.kubernetes.io/unreachable", "node.kubernetes.io/not-ready"})


def is_ours(request: CheckRequest) -> bool:
    return request.by == MANAGER


@dataclass(frozen=True, slots=True)
class CheckCosts:
    """Declared costs of checks. limit_s: maximum duration; heavy: not beside a job."""

    limit_s: Callable[[str], float]
    heavy: Callable[[str], bool]


@dataclass(frozen=True, slots=True)
class ProofToRequest:
    """A proof to request. stamp: lower limit for the number in its id; since: when it could first have been requested,
    in seconds since the epoch; faults: how many wait for it; held_as: digests of the names of its device."""

    proof: ProofCheck
    stamp: int
    since: float
    heavy: bool
    faults: int = 1
    held_as: tuple[str, ...] = ()

    def request(self, now: float) -> CheckRequest:
        proof = self.proof.proof
        params = {"runs": str(proof.passes)}  # by default an agent requires all runs to pass
        if proof.passes > 1 and proof.interval:
            params["interval_s"] = f"{min(proof.interval, LONGEST_INTERVAL_S):g}"
        if self.proof.component:
            params["sees"] = self.proof.component
        if self.proof.alone:
            params |= {"device": self.proof.component, "held_as": ",".join(self.held_as)}
        if self.proof.optional:
            params["if_installed"] = ",".join(self.proof.optional)
        return CheckRequest(
            id=ProofRequest(self.proof.digest, max(int(now), self.stamp)).id,
            checks=self.proof.checks,
            params=params,
            by=MANAGER,
            expires=rfc3339_whole(now + EXPIRES_S),
        )


@dataclass(frozen=True, slots=True)
class EndedRequest:
    """A request to delete. result: how it failed; empty: it passed, or is no longer wanted. failed: counts as a failed
    attempt; again_at: not requested again before that, in seconds since the epoch."""

    request: CheckRequest
    result: str = ""
    failed: bool = False
    again_at: float = 0.0


@dataclass(frozen=True, slots=True)
class NodePlan:
    """One node. ended, keep: its requests of ours; clear: all of spec.clear, None: unchanged; tried: the new record.

    asks:    proofs that could be requested now; empty while something else has to be written
    heavy:   a heavy request is pending and takes a slot
    look_at: seconds since the epoch
    """

    name: str
    ended: tuple[EndedRequest, ...] = ()
    keep: tuple[CheckRequest, ...] = ()
    clear: tuple[ClearEntry, ...] | None = None
    tried: Mapping[str, VerificationAttempts] = field(default_factory=dict)
    forgets: bool = False
    asks: tuple[ProofToRequest, ...] = ()
    heavy: bool = False
    look_at: float = _NEVER

    @property
    def writes(self) -> bool:
        """Something has to be deleted, cleared or dropped."""
        return bool(self.ended) or self.clear is not None or self.forgets

    @property
    def matters(self) -> bool:
        return self.writes or bool(self.keep) or bool(self.asks) or self.look_at < _NEVER


@dataclass(slots=True)
class _Group:
    """Faults that one proof would close. at: when it is requested first."""

    proof: ProofCheck
    faults: list[Fault]
    at: float

    @property
    def last_sign(self) -> float:
        return max(map(last_sign, self.faults))


def last_sign(fault: Fault) -> float:
    return max(seconds(fault.since), seconds(fault.raised))


def first_at(fault: Fault, want: FaultPolicy, hold_s: float, now: float) -> float:
    """When a fault's proof is requested first. hold_s: the policy's hold-down.

    Not before its hold-down has passed: an intermittent fault disappears by itself, so three passes within half a
    minute of a failure prove little. A clock that was set back delays nothing.
    """
    last = last_sign(fault)
    held = last + (hold_s if want.hold_s is None else want.hold_s)
    return max(now if last > now + 1.0 else held, confirmed_at(fault, want, now))


def plan_node(
    node: Node | None,
    health: NodeHealth | UnusableHealth | None,
    policy: Policy,
    now: float,
    costs: CheckCosts,
    idle_devices: Mapping[str, tuple[str, ...]] = MappingProxyType({}),
) -> NodePlan:
    """``now``: seconds since the epoch; ``idle_devices``: by component: quarantined devices that no pod holds, with
    digests of their names in Dynamic Resource Allocation."""
    if not isinstance(health, NodeHealth):
        return NodePlan("" if node is None else node.metadata.name)
    name = health.metadata.name
    report = read_report(health)
    requests = [request for request in health.spec.requests if is_ours(request)]
    stored = read_attempts(health)
    if report.error:  # a report with an invalid part closes nothing
        return NodePlan(name, keep=tuple(requests), tried=stored, heavy=_any_heavy(requests, costs))
    memory = read_record(node) if node is not None and is_managed(node) else NodeRecord()
    groups, waiting = _groups(memory, report, policy, now)
    tried = {digest: each for digest, each in stored.items() if digest in groups or digest in waiting}
    ended: list[EndedRequest] = []
    keep: list[CheckRequest] = []
    times = [group.at for group in groups.values()]
    for request in requests:
        over = _over(request, final_answer(health, request), groups, tried, report, now, costs)
        if over is None:
            keep.append(request)
            times.append(_deadline(request, costs))
        else:
            ended.append(over)
    tried = limit_attempts(tried)
    clear = _clear_owed(health, memory, report, now)
    heavy = _any_heavy(keep, costs)
    made = NodePlan(name, tuple(ended), tuple(keep), clear, tried, tried != stored, heavy=heavy)
    asks: list[ProofToRequest] = []
    if not made.writes and node is not None and _answers(node, health):
        pending = {proof.digest for proof in map(read_proof_request, keep) if proof is not None}
        for digest, group in groups.items():
            if digest not in pending:
                ask = _ask(group, tried.get(digest, VerificationAttempts()), report.boot, costs, now, times)
                if ask is None:
                    continue
                if group.proof.alone and group.proof.component in idle_devices:
                    asks.append(replace(ask, held_as=idle_devices[group.proof.component]))
                elif not ask.heavy or (health.status.idle_since and not group.proof.alone):
                    asks.append(ask)
    room = min(AT_ONCE - len(keep), REQUESTS_LIMIT - len(health.spec.requests))
    asks = sorted(asks, key=lambda ask: ask.since)[: max(0, room)]
    look_at = min((at for at in times if at > now), default=_NEVER)
    return NodePlan(name, made.ended, made.keep, clear, tried, made.forgets, tuple(asks), heavy, look_at)


def choose_nodes(provings: Iterable[NodePlan], cap: int) -> dict[str, tuple[ProofToRequest, ...]]:
    """The requests to make now, by node: light checks at once, heavy ones while slots are free, longest waiting first.
    cap: number of nodes that run a heavy proof at the same time."""
    free = cap
    result: dict[str, tuple[ProofToRequest, ...]] = {}
    heavy: list[tuple[float, NodePlan]] = []
    for each in provings:
        free -= each.heavy
        needs = [ask.since for ask in each.asks if ask.heavy]
        if needs and not each.heavy:
            heavy.append((min(needs), each))
        asks = each.asks if each.heavy else tuple(ask for ask in each.asks if not ask.heavy)
        if asks:
            result[each.name] = asks
    for _, each in sorted(heavy, key=lambda item: (item[0], item[1].name))[: max(0, free)]:
        result[each.name] = each.asks
    return result


def _groups(
    memory: NodeRecord, report: NodeReport, policy: Policy, now: float
) -> tuple[dict[str, _Group], frozenset[str]]:
    """Proofs that may be requested, by digest, and digests of proofs that may be requested later: not confirmed, held,
    or not rebooted yet."""
    groups: dict[str, _Group] = {}
    waiting = set()
    for fault in memory.open:
        want = match_policy(fault, policy)
        if want.proof is None:
            continue
        digest = want.proof.digest
        booted = report.boot and fault.boot and report.boot != fault.boot
        if fault.over or (want.proof.new_boot and not booted):
            waiting.add(digest)
            continue
        at = first_at(fault, want, policy.hold_down.base, now)
        group = groups.setdefault(digest, _Group(want.proof, [], at))
        group.faults.append(fault)
        group.at = max(group.at, at)
    return groups, frozenset(waiting - groups.keys())


def _over(
    request: CheckRequest,
    answer: RequestAnswer | None,
    groups: Mapping[str, _Group],
    tried: dict[str, VerificationAttempts],
    report: NodeReport,
    now: float,
    costs: CheckCosts,
) -> EndedRequest | None:
    """None: still pending. Otherwise its result is recorded in ``tried``."""
    proof = read_proof_request(request)
    if proof is None:
        return EndedRequest(request)
    group = groups.get(proof.digest)
    known = tried.get(proof.digest, VerificationAttempts())
    if group is None:
        if proof.digest in tried:
            tried[proof.digest] = msgspec.structs.replace(known, requested=int(proof.at))
        return EndedRequest(request)
    passed = answer is not None and answer.verdict == Verdict.PASS
    if passed and any(proof_for(fault, group.proof, report) for fault in group.faults):
        return None  # until the Node records it
    if passed or all(last_sign(fault) >= proof.at for fault in group.faults) or _ran_ahead(request, now):
        tried[proof.digest] = msgspec.structs.replace(known, requested=int(proof.at))
        return EndedRequest(request)  # it proves nothing about the faults that are open now
    if answer is None:
        if now <= _deadline(request, costs):
            return None
        result = "no answer"
    else:
        result = f"{answer.verdict} {answer.reason}".strip()[:_RESULT_LIMIT]
    earlier = known.tries if known.boot == report.boot else 0
    busy = answer is not None and answer.verdict == Verdict.UNKNOWN and answer.reason == "Busy"
    pause_s = BUSY_PAUSE_S if busy else backoff_s(group.proof.proof.retry, earlier)
    tried[proof.digest] = VerificationAttempts(
        tries=earlier if busy else earlier + 1,
        boot=report.boot,
        after=rfc3339_whole(now + pause_s),
        requested=int(proof.at),
        last_result=result,
    )
    return EndedRequest(request, result, not busy, now + pause_s)


def _ask(
    group: _Group, known: VerificationAttempts, boot: str, costs: CheckCosts, now: float, times: list[float]
) -> ProofToRequest | None:
    at = max(group.at, not_before(known, group.proof, boot, now))
    times.append(at)
    if at > now:
        return None
    last_number = known.requested if 0 <= known.requested < _LATEST else 0
    # not only the time: after a clock was set back, a new request must still be later than every sign
    stamp = max(int(group.last_sign), last_number) + 1
    heavy = any(map(costs.heavy, group.proof.checks))
    return ProofToRequest(group.proof, stamp, at, heavy, len(group.faults))


def not_before(known: VerificationAttempts, proof: ProofCheck, boot: str, now: float) -> float:
    """A reboot resets the back-off, because repairs reboot nodes and should be verified at once. A time beyond the
    longest pause comes from a clock that ran ahead, and is ignored."""
    after = seconds(known.after)
    if known.boot != boot or after > now + max(DAY_S, proof.proof.retry):
        return 0.0
    return after


def _answers(node: Node, health: NodeHealth) -> bool:
    """Whether an agent is there to answer."""
    status = health.status
    if node.metadata.deletion_timestamp or not status.verdict or not status.agent.pod_uid:
        return False
    return not any(taint.key in _SILENT_TAINTS for taint in node.spec.taints)


def _deadline(request: CheckRequest, costs: CheckCosts) -> float:
    """When an answer is no longer expected, in seconds since the epoch."""
    return seconds(request.expires) + _series_s(request, costs)


def _series_s(request: CheckRequest, costs: CheckCosts) -> float:
    """Maximum duration of all runs."""
    runs, interval_s = _number(request.params.get("runs", "1")), _number(request.params.get("interval_s", "0"))
    return runs * (sum(map(costs.limit_s, request.checks)) + interval_s)


def _number(text: str) -> float:
    """1 for invalid text: users can edit it."""
    return float(text) if text.isascii() and text.replace(".", "", 1).isdigit() and len(text) < 9 else 1.0


def _ran_ahead(request: CheckRequest, now: float) -> bool:
    """The requester's clock was ahead: the request would never expire."""
    return seconds(request.expires) > now + EXPIRES_S + _SLACK_S


def _any_heavy(requests: Iterable[CheckRequest], costs: CheckCosts) -> bool:
    return any(costs.heavy(check) for request in requests for check in request.checks)


def _is_to_go(closed: ClosedFault) -> bool:
    """Whether the agent has to drop its finding: for faults closed by proof, and for kernel-log faults that a person
    closed by removing the taint. The next run of any other check reports a measured finding again anyway."""
    return closed.how == "proof" or (closed.how == PERSON and closed.check in LOG_CHECKS)


def _clear_owed(
    health: NodeHealth, memory: NodeRecord, report: NodeReport, now: float
) -> tuple[ClearEntry, ...] | None:
    """The new spec.clear, if a finding is still reported whose fault is closed. An entry clears all findings of a
    component up to its number, so entries that would also clear another finding are left out."""
    owed: dict[tuple[str, str], ClearEntry] = {}
    for closed in memory.closed:
        finding = report.finding(closed.key)
        if not _is_to_go(closed) or finding is None or not closes(closed.check, closed.occurrence, finding.occurrence):
            continue
        if report.clear_for(closed.key, finding.occurrence) is not None:
            continue
        known = owed.get(closed.key[:2])
        if known is None or known.occurrence < finding.occurrence:
            owed[closed.key[:2]] = ClearEntry(
                check=closed.check,
                component=closed.component,
                occurrence=finding.occurrence,
                by=f"muster-tainter: {closed.by}",
                at=rfc3339_whole(now),
            )
    by_number = sorted(memory.closed, key=lambda closed: closed.occurrence)  # the highest of each counts
    over = {closed.key: closed.occurrence for closed in by_number if _is_to_go(closed)}
    opened = [(fault.key, fault.occurrence) for fault in memory.open]
    reported = [(key, finding.occurrence) for key, finding in (report.findings or {}).items()]
    for key, occurrence in (*opened, *reported):
        entry = owed.get(key[:2])
        if entry is not None and occurrence <= entry.occurrence and occurrence > over.get(key, 0):
            del owed[key[:2]]
    if not owed or len(owed) > CLEAR_LIMIT:
        return None
    return merge_clears(health.spec.clear, tuple(owed.values()))
