"""Proven evidence as findings of the check ``podoutcomes``, and what ends them.

A FAIL, of a kind that no tenant controls, has the class ``reboot``: it ends when the node has rebooted and its agent
has reported a full pass, by a proof that the policy's rule asks for, or by a person. A WARN ends after a quiet day.
"""

from collections.abc import Callable, Collection
from functools import partial

from muster_checks.base.declaration import AllClear, Sign
from muster_checks.base.vocabulary import FaultClass, Measurement, Verdict, shorten
from muster_kube.nodehealth import NodeHealth
from muster_tainter.faults.record.node_record import Fault
from muster_tainter.fleet.interface import Fleet, record_of
from muster_tainter.outcomes.evidence import Verdict as Evidence
from muster_tainter.outcomes.pods import PodOutcome
from muster_tainter.policy.recovery import POD_OUTCOMES
from muster_tainter.sources.loki.finding_tracker import FindingTracker
from muster_tainter.sources.occurrences import last_ended

COMPONENT = "host"
QUIET_S = 86_400.0


class OutcomeFindings:
    """restarted: called with the node and kind of a finding that has ended: its evidence begins anew."""

    def __init__(self, fleet: Fleet, restarted: Callable[[str, str], None]) -> None:
        self._fleet = fleet
        self._restarted = restarted
        external = fleet.external_findings
        self._tracker = FindingTracker(POD_OUTCOMES, partial(record_of, fleet), external.add, external.close)

    def adopt(self, now: float) -> None:
        """Take over the warnings of an earlier leader."""
        for node in list(self._fleet.nodes):
            self._tracker.adopt(node, now)

    def take(self, evidence: Evidence, verdict: Verdict, last: PodOutcome | None, now: float) -> bool:
        """False if the evidence belongs to a finding that has ended. last: of the failures, if it is known."""
        # the proof may come with the end of a comparison, after the last failure
        at = now if last is None else last.at
        sign = Sign(
            component=COMPONENT,
            reason=evidence.kind,
            verdict=verdict,
            message=message_of(evidence, last),
            at=at,
            fault_class=FaultClass.REBOOT if verdict is Verdict.FAIL else FaultClass.NONE,
            measurements=(
                Measurement("evidence", evidence.value, threshold=evidence.threshold),
                Measurement("failed_attempts", evidence.failures),
                Measurement("attempts", evidence.attempts),
                Measurement("expected_failures", evidence.expected_rate * 100.0, "%"),
            ),
        )
        return self._tracker.take(evidence.node, sign, quiet_s=QUIET_S)

    def has_ended(self, node: str, kind: str, at: float) -> bool:
        """Whether a failure at this time is from before the end of a finding about it."""
        _, ended_ms = last_ended((POD_OUTCOMES, COMPONENT, kind), record_of(self._fleet, node))
        return at * 1000.0 <= ended_ms

    def settle(self, now: float) -> None:
        """Drop what ended elsewhere, and warnings after their quiet time."""
        self._tracker.settle(lambda node, key: self._restarted(node, key[1]))
        self._tracker.tick(now)

    def look_at_boot(self, name: str, now: float) -> None:
        """End the failures from before the node's reboot. An agent publishes a boot with its first full pass."""
        boot, ended = self.ended_by_boot(name)
        for fault in ended:
            clear = AllClear(component=COMPONENT, at=now, how="boot", reasons=(fault.reason,), line=f"boot {boot}")
            self._tracker.clear(name, clear)
            self._restarted(name, fault.reason)

    def ended_by_boot(self, name: str) -> tuple[str, list[Fault]]:
        """The node's boot, and what it ends."""
        health = self._fleet.health_of(name)
        if not isinstance(health, NodeHealth) or health.status.verdict not in (Verdict.PASS, Verdict.WARN):
            return "", []
        boot = health.status.boot_id
        faults = [each for each in record_of(self._fleet, name).open if each.check == POD_OUTCOMES and not each.over]
        return boot, [fault for fault in faults if fault.boot and boot and fault.boot != boot]

    def drop_kinds(self, kinds: Collection[str], now: float) -> None:
        """The policy does not ask for these kinds now."""
        line = "the policy no longer asks for this"
        for node in list(self._fleet.nodes):
            reasons = {fault.reason for fault in record_of(self._fleet, node).open if fault.check == POD_OUTCOMES}
            reasons |= {reason for _, reason in self._tracker.nodes.get(node, {})}
            if dropped := tuple(sorted(reasons.intersection(kinds))):
                clear = AllClear(component=COMPONENT, at=now, how="source", reasons=dropped, line=line)
                self._tracker.clear(node, clear)

    def drop(self, node: str) -> None:
        """The node was removed."""
        self._tracker.drop(node)


def message_of(evidence: Evidence, last: PodOutcome | None) -> str:
    """The evidence in words, with the names of a pod and its namespace, which its owner has chosen."""
    of = "1 namespace" if evidence.namespaces == 1 else f"{evidence.namespaces} namespaces"
    text = (
        f"{evidence.failures} of {evidence.attempts} attempts of {of} failed here, "
        f"{evidence.expected_rate:.2g} of them expected; evidence {evidence.value:.2g} of {evidence.threshold:.2g}"
    )
    if last is not None:
        text += f"; last: {last.reason}, {last.owner.rpartition('/')[0] or last.owner} in {last.namespace}"
    return shorten(text)
