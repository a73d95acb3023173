"""How a fault is being proved over, in lines for people. Pure."""

from muster_kube.api.times import rfc3339_whole
from muster_kube.nodehealth import NodeHealth
from muster_tainter.faults.node_record import Fault
from muster_tainter.faults.node_report import UnusableHealth
from muster_tainter.faults.policy_match import FaultPolicy
from muster_tainter.faults.verification_attempts import VerificationAttempts, read_attempts
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
    """For people: how often what would prove ``fault`` over failed, and when it is asked for next; nothing about what
    is asked for now. hold_s: the policy's own hold-down."""
    proof = want.proof
    if proof is None or fault.over or not isinstance(health, NodeHealth):
        return []
    lines = []
    known = read_attempts(health).get(proof.digest, VerificationAttempts())
    boot = health.status.boot_id
    if known.said:
        again = "this boot" if known.boot == boot else "an earlier boot"
        lines.append(f"{known.tries} time{'' if known.tries == 1 else 's'} not passed in {again}, last: {known.said}")
    if proof.new_boot and not (boot and fault.boot and boot != fault.boot):
        return [*lines, "not asked for before the node has booted anew"]
    for request in health.spec.requests:
        asked = read_proof_request(request)
        if asked is not None and asked.digest == proof.digest:
            return lines
    at = max(first_at(fault, want, hold_s, now), not_before(known, proof, boot, now))
    if at > now:
        return [*lines, f"asked for {'again ' if known.said else ''}from {rfc3339_whole(at)} on"]
    if not health.status.agent.pod_uid:
        return [*lines, "waits for an agent"]
    return [*lines, f"waits for {'a place' if health.status.idle_since else 'the node to be idle, or a place'}"]
