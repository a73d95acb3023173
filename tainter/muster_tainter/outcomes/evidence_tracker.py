"""Follows the evidence of all nodes: attempts in, proofs out. Pure: time comes with the attempts.

Two tests, one notion of error (evidence_detector.py): kinds that a tenant may cause are compared within an
owner (evidence_rounds.py); kinds that no tenant controls, with the rate of the other nodes
(evidence_base_rate.py). The expected number of proofs without a cause, per node and year, is at most
``false_alarms_per_node_year``, divided equally among the kinds.

Memory is bounded by the settings; what goes first is the oldest. Nothing that is given up raises a value.
"""

import math
from collections import OrderedDict
from collections.abc import Iterable

from muster_tainter.outcomes.evidence import HOUR_S, Attempt, EvidenceSettings, Verdict
from muster_tainter.outcomes.evidence_base_rate import RATE_WEIGHTS, BaseRate, factors
from muster_tainter.outcomes.evidence_detector import Detector
from muster_tainter.outcomes.evidence_rounds import ODDS, Round, Rounds, compare

ODDS_WEIGHTS = (1 / len(ODDS),) * len(ODDS)


class EvidenceTracker:
    def __init__(self, settings: EvidenceSettings) -> None:
        self._settings = settings
        self._threshold = settings.threshold
        self._nodes: OrderedDict[str, dict[str, Detector]] = OrderedDict()
        self._begin_at(-math.inf)

    def _begin_at(self, now: float) -> None:
        self._now = now
        self._begin = now  # what was evicted has used the capital until then, if it comes back
        self._rounds = Rounds(self._settings)
        self._rates = {kind: BaseRate(self._settings.nodes) for kind in sorted(self._settings.host_kinds)}

    def add(self, attempt: Attempt) -> list[Verdict]:
        """Returns what it proves. One attempt can end a round and so prove something about other nodes.

        Failures of kinds that the settings do not name are not compared. Neither is an attempt on a node that is proven
        to be bad: it would make the other nodes look good.
        """
        self._now = max(self._now, attempt.at)
        proofs: list[Verdict] = []
        for kind, rate in self._rates.items():
            failed = attempt.failed and attempt.kind == kind
            if failed or kind in attempt.passed:
                proofs += self._add_to_rate(attempt, kind, failed, rate)
        comparable = attempt.kind in self._settings.tenant_kinds or not attempt.failed
        if comparable and not self._is_proven_by_tenants(attempt.node):
            proofs += self._judge_rounds(self._rounds.add(attempt))
        return proofs

    def advance(self, now: float) -> list[Verdict]:
        """Ends the rounds that have waited long enough. Returns what they prove.

        If the clock has gone back by more than an hour, all evidence that is not a proof is given up. Otherwise no
        capital would come in until the clock is again where it was.
        """
        if now < self._now - HOUR_S:
            for node, kinds in list(self._nodes.items()):
                self._nodes[node] = {kind: each for kind, each in kinds.items() if each.proven}
                for each in self._nodes[node].values():
                    each.last = each.failed_at = now
            self._begin_at(now)
        self._now = max(self._now, now)
        return self._judge_rounds(self._rounds.due(now))

    def verdict(self, node: str, kind: str) -> Verdict | None:
        """None: nothing is known."""
        detector = self._detector(node, kind)
        return self._verdict(node, kind, detector) if detector else None

    def proven(self) -> list[Verdict]:
        """By node and kind."""
        return [
            self._verdict(node, kind, detector)
            for node, kinds in sorted(self._nodes.items())
            for kind, detector in sorted(kinds.items())
            if detector.proven
        ]

    def restart(self, node: str, kind: str) -> None:
        """Evidence begins anew: a fault has been closed, by proof or by a person."""
        if detector := self._detector(node, kind):
            detector.restart()

    def drop(self, node: str) -> None:
        """The node is gone."""
        for rate in self._rates.values():
            rate.leave_out(node)
        self._nodes.pop(node, None)

    def forget_before(self, time: float) -> None:
        """Gives up nodes without evidence since ``time``, unless something is proven about them."""
        for node, kinds in list(self._nodes.items()):
            if all(each.last < time and not each.proven for each in kinds.values()):
                self._evict(node)
        self._rounds.forget_before(time)

    def _evict(self, node: str) -> None:
        self._begin = max([self._begin, *(each.last for each in self._nodes[node].values())])
        self.drop(node)

    def _evict_oldest(self) -> None:
        """A node about which something is proven goes only if there is no other."""
        for _ in range(len(self._nodes) - 1):
            node, kinds = next(iter(self._nodes.items()))
            if not any(each.proven for each in kinds.values()):
                break
            self._nodes.move_to_end(node)
        self._evict(next(iter(self._nodes)))

    def _add_to_rate(self, attempt: Attempt, kind: str, failed: bool, rate: BaseRate) -> list[Verdict]:
        detector = self._detector_to_use(attempt.node, kind)
        if detector.proven:
            return []
        if failed:
            if attempt.at - detector.failed_at < self._settings.spacing_s:
                return []
            detector.failed_at = attempt.at
        chance = rate.of_healthy(attempt.node, self._now)
        rate.add(attempt.node, failed, self._now)
        detector.let_time_pass(attempt.at)
        factor = detector.multiply(factors(chance, failed), attempt.namespace)
        detector.count(failed, chance, factor, attempt.at, attempt.namespace)
        return self._judge(attempt.node, kind, detector)

    def _is_proven_by_tenants(self, node: str) -> bool:
        kinds = self._nodes.get(node, {})
        return any(each.proven for kind, each in kinds.items() if kind not in self._rates)

    def _judge_rounds(self, rounds: Iterable[Round]) -> list[Verdict]:
        proofs: list[Verdict] = []
        for each in rounds:
            namespace, _ = each.owner
            for found in compare(each.records):
                detector = self._detector_to_use(found.node, found.kind)
                if detector.proven:
                    continue
                detector.let_time_pass(self._now)
                factor = detector.multiply(found.factors, namespace)
                detector.count(found.failed, found.expected, factor, self._now, namespace)
                proofs += self._judge(found.node, found.kind, detector)
        return proofs

    def _judge(self, node: str, kind: str, detector: Detector) -> list[Verdict]:
        if detector.value < self._threshold:
            return []
        detector.proven = True
        if rate := self._rates.get(kind):
            rate.leave_out(node)
        return [self._verdict(node, kind, detector)]

    def _detector(self, node: str, kind: str) -> Detector | None:
        return self._nodes.get(node, {}).get(kind)

    def _detector_to_use(self, node: str, kind: str) -> Detector:
        if node not in self._nodes and len(self._nodes) >= self._settings.nodes:
            self._evict_oldest()
        kinds = self._nodes.setdefault(node, {})
        self._nodes.move_to_end(node)
        if kind not in kinds:
            host = kind in self._rates
            kinds[kind] = Detector(RATE_WEIGHTS if host else ODDS_WEIGHTS, self._begin, distrust=not host)
        return kinds[kind]

    def _verdict(self, node: str, kind: str, detector: Detector) -> Verdict:
        return Verdict(
            node=node,
            kind=kind,
            proven=detector.proven,
            value=detector.value,
            threshold=self._threshold,
            attempts=detector.attempts,
            failures=detector.failures,
            namespaces=len(detector.namespaces),
            expected_rate=detector.expected / max(detector.attempts, 1),
            since=detector.since,
        )
