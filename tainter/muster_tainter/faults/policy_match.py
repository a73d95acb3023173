"""The active policy applied to an open fault: taint, wait, what closes it, hold-down. Pure functions."""

import re
from dataclasses import dataclass, replace
from functools import lru_cache

from muster_checks.base.vocabulary import FaultClass
from muster_kube.api.times import seconds
from muster_tainter.faults.record.node_record import (
    LOST_CHECK,
    DeviceStage,
    Fault,
    NodeRecord,
    OurTaint,
    as_our_taint,
    lost_taint,
)
from muster_tainter.policy.check_facts import can_test_one_device, is_heavy
from muster_tainter.policy.recovery import ProofCheck
from muster_tainter.policy.rules import CloseOn, Policy, Rule
from muster_tainter.policy.sections.devices import Isolation


@dataclass(frozen=True)
class FaultPolicy:
    """The active policy's decision about a fault.

    rule:     its name; empty: no rule matches
    taint:    None: no taint
    wait_s:   how long the fault must be open before Muster acts
    proof:    the checks to request as proof; None: none
    hold_s:   base of its hold-down, None: the policy's
    quarantine, drain: from its action
    isolate:  what the taint goes onto, if its device can be quarantined
    device:   the taint of the device, while the record says that only the device is kept out; ``taint`` is None then
    """

    rule: str = ""
    taint: OurTaint | None = None
    close_on: tuple[CloseOn, ...] = (CloseOn.BOOT, CloseOn.DRIVER, CloseOn.QUIET, CloseOn.SOURCE)
    wait_s: float = 0.0
    proof: ProofCheck | None = None
    hold_s: float | None = None
    quarantine: bool = False
    drain: bool = False
    isolate: Isolation = "node"
    device: OurTaint | None = None


_NOTHING = FaultPolicy()
_GPU = re.compile(r"gpu/[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")  # as the parameter one_device takes it


def match_policy(fault: Fault, policy: Policy) -> FaultPolicy:
    """Match an open fault against the active policy; a changed rule also changes the taints of open faults."""
    want = match_as_node(fault, policy)
    if fault.device != DeviceStage.ALONE or want.taint is None:
        return want
    return _on_device(want, fault.component)


@lru_cache(maxsize=1024)
def _on_device(want: FaultPolicy, component: str) -> FaultPolicy:
    """The proof tests this device alone if all its heavy checks can; else it waits until the whole node is idle."""
    proof = want.proof
    if proof is not None and _GPU.fullmatch(component):
        heavy = [check for check in proof.checks if is_heavy(check)]
        if heavy and all(map(can_test_one_device, heavy)):
            proof = replace(proof, component=component, alone=True)
    return replace(want, taint=None, device=want.taint, proof=proof)


def match_as_node(fault: Fault, policy: Policy) -> FaultPolicy:
    """The same as if no device could be kept out alone."""
    if fault.check == LOST_CHECK:
        return FaultPolicy(taint=lost_taint(fault), close_on=(CloseOn.BOOT,))
    if fault.rest:
        return _by_rule(policy.rule_named(fault.rule), policy, fault.check, fault.fault_class, rest=True)
    others = policy.mark_of(fault.others)
    return _match_rule(policy, fault.check, fault.component, fault.reason, fault.verdict, fault.fault_class, others)


@lru_cache(maxsize=1024)  # a decision calls it some ten times, and the faults of a fleet are few kinds
def _match_rule(
    policy: Policy, check: str, component: str, reason: str, verdict: str, fault_class: str, others: int
) -> FaultPolicy:
    rule = policy.rule_for(check, component, reason, verdict, fault_class, others)
    want = _by_rule(rule, policy, check, fault_class, rest=False)
    if want.proof is None or fault_class != FaultClass.QUARANTINE:
        return want
    # a host sees an IPU only while one of its partitions has it, and may see other IPUs that are bad
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
        isolate=rule.isolation_of(fault_class),
    )


def confirmed_at(fault: Fault, want: FaultPolicy, now: float) -> float:
    """When Muster acts on the fault, in seconds since the epoch. A clock that was set back delays nothing."""
    since = seconds(fault.since)
    return now if since > now else since + want.wait_s


def held_until(fault: Fault, want: FaultPolicy, memory: NodeRecord, policy: Policy) -> float:
    """Until when a resolved fault keeps its taint, in seconds since the epoch."""
    over = seconds(fault.over)
    return over + policy.hold_down.seconds(current_penalty(memory, fault, over, policy), want.hold_s)


def penalty_key(fault: Fault) -> str:
    """Under which its flaps count: its check; of a device that is kept out of use alone, with the board, so that a
    flapping device holds up none of its siblings, and a board that moves keeps its record."""
    return board_key(fault) if fault.device in (DeviceStage.ALONE, DeviceStage.WANTED) else fault.check


def board_key(fault: Fault) -> str:
    return f"{fault.check}@{fault.board or fault.component}"


def current_penalty(memory: NodeRecord, fault: Fault, now: float, policy: Policy) -> float:
    """The flap penalty of the fault's check on this node, or of its device; the higher one if the node is tainted for a
    device that was kept out alone before."""
    own = penalty_now(memory, penalty_key(fault), now, policy)
    return max(own, penalty_now(memory, board_key(fault), now, policy)) if fault.board else own


def penalty_now(memory: NodeRecord, key: str, now: float, policy: Policy) -> float:
    penalty = memory.penalty.get(key)
    return 0.0 if penalty is None else policy.hold_down.decayed(penalty.n, now - seconds(penalty.at))
