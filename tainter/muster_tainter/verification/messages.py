"""Describes how a fault is being verified as resolved, as lines of text. Pure functions."""

from muster_checks.base.execution import NOT_INSTALLED
from muster_checks.base.vocabulary import Verdict
from muster_kube.api.times import rfc3339_whole
from muster_kube.nodehealth import NodeHealth
from muster_tainter.faults.node_report import UnusableHealth
from muster_tainter.faults.policy_match import FaultPolicy
from muster_tainter.faults.record.node_record import Fault
from muster_tainter.faults.record.verification_attempts import VerificationAttempts, read_attempts
from muster_tainter.policy.recovery import HoldDown, read_proof_request
from muster_tainter.verification.node_plan import first_at, not_before


def format_proof(
    fault: Fault,
    want: FaultPolicy,
    health: NodeHealth | UnusableHealth | None,
    now: float,
    *,
    hold_s: float = HoldDown().base,
) -> list[str]:
    """How often verification of ``fault`` failed, and when the next request is due; empty while a request is pending.

    hold_s: the policy's hold-down.
    """
    proof = want.proof
    if proof is None or fault.over or not isinstance(health, NodeHealth):
        return []
    lines = [
        f"{check.name} does not count: not installed on this node ({check.reason}: {check.message})"
        for check in health.status.checks
        if check.name in proof.optional and check.verdict == Verdict.UNKNOWN and check.reason in NOT_INSTALLED
    ]
    known = read_attempts(health).get(proof.digest, VerificationAttempts())
    boot = health.status.boot_id
    if known.last_result:
        again = "this boot" if known.boot == boot else "an earlier boot"
        lines.append(
            f"not passed {known.tries} time{'' if known.tries == 1 else 's'} in {again}, last: {known.last_result}"
        )
    if proof.new_boot and not (boot and fault.boot and boot != fault.boot):
        return [*lines, "waiting for the node to reboot"]
    for request in health.spec.requests:
        pending = read_proof_request(request)
        if pending is not None and pending.digest == proof.digest:
            return lines
    at = max(first_at(fault, want, hold_s, now), not_before(known, proof, boot, now))
    if at > now:
        return [*lines, f"{'next' if known.last_result else 'first'} attempt not before {rfc3339_whole(at)}"]
    if not health.status.agent.pod_uid:
        return [*lines, "waiting for an agent"]
    slot = "a verification slot"
    return [*lines, f"waiting for {slot if health.status.idle_since else f'the node to be idle, or for {slot}'}"]
