"""What the policy in force makes of an open fault: its taint, how long it waits, what ends it, its hold-down. Pure."""

from dataclasses import dataclass, replace
from functools import lru_cache

from muster_checks.base.vocabulary import FaultClass
from muster_kube.api.times import seconds
from muster_tainter.faults.node_record import LOST_CHECK, Fault, NodeRecord, OurTaint, as_our_taint, lost_taint
from muster_tainter.policy.recovery import ProofCheck
from muster_tainter.policy.rules import CloseOn, Policy, Rule


@dataclass(frozen=True)
class FaultPolicy:
    """What the policy in force makes of a fault.

    rule:     its name; empty: none
    taint:    None: no taint (any more)
    wait_s:   how long it is open before anything is done about it
    proof:    what may be asked for to prove it over; None: nothing
    hold_s:   base of its hold-down, None: the policy's
    quarantine, drain: of its action
    """

    rule: str = ""
    taint: OurTaint | None = None
    close_on: tuple[CloseOn, ...] = (CloseOn.BOOT, CloseOn.DRIVER, CloseOn.QUIET, CloseOn.SOURCE)
    wait_s: float = 0.0
    proof: ProofCheck | None = None
    hold_s: float | None = None
    quarantine: bool = False
    drain: bool = False


_NOTHING = FaultPolicy()


def match_policy(fault: Fault, policy: Policy) -> FaultPolicy:
    """What the policy in force makes of an open fault: a changed rule moves the taints of open faults too."""
    if fault.check == LOST_CHECK:
        return FaultPolicy(taint=lost_taint(fault), close_on=(CloseOn.BOOT,))
    if fault.rest:
        return _by_rule(policy.rule_named(fault.rule), policy, fault.check, fault.fault_class, rest=True)
    others = policy.mark_of(fault.others)
    return _match_rule(policy, fault.check, fault.component, fault.reason, fault.verdict, fault.fault_class, others)


@lru_cache(maxsize=1024)  # each decision asks some ten times, and a fleet's faults are few kinds
def _match_rule(
    policy: Policy, check: str, component: str, reason: str, verdict: str, fault_class: str, others: int
) -> FaultPolicy:
    rule = policy.rule_for(check, component, reason, verdict, fault_class, others)
    want = _by_rule(rule, policy, check, fault_class, rest=False)
    if want.proof is None or fault_class != FaultClass.QUARANTINE:
        return want
    # its host sees an IPU only while one of its partitions has it, and may see others that are bad
    return replace(want, proof=replace(want.proof, component=component))


def _by_rule(rule: Rule | None, policy: Policy, check: str, fault_class: str, *, rest: bool) -> FaultPolicy:
    if rule is None:
        return _NOTHING
    taint = rule.node_taint
    return FaultPolicy(
        rule=rule.name,
        taint=None if taint is None else as_our_taint(taint),
        close_on=rule.closes_on(fault_class),
        wait_s=policy.wait_of(rule),
        proof=None if rest else rule.proof_of(check, fault_class),
        hold_s=rule.hold_down,
        quarantine=rule.action == "quarantine",
        drain=rule.action == "drain",
    )


def confirmed_at(fault: Fault, want: FaultPolicy, now: float) -> float:
    """From when on something is done about it, in seconds since the epoch. A clock that was set back delays nothing."""
    since = seconds(fault.since)
    return now if since > now else since + want.wait_s


def held_until(fault: Fault, want: FaultPolicy, memory: NodeRecord, policy: Policy) -> float:
    """Until when a fault that is over keeps its taint, in seconds since the epoch."""
    over = seconds(fault.over)
    return over + policy.hold_down.seconds(current_penalty(memory, fault.check, over, policy), want.hold_s)


def current_penalty(memory: NodeRecord, check: str, now: float, policy: Policy) -> float:
    """How often faults of ``check`` were over on this node lately."""
    penalty = memory.penalty.get(check)
    return 0.0 if penalty is None else policy.hold_down.decayed(penalty.n, now - seconds(penalty.at))
