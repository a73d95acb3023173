"""Decides from the answers to one PromQL query when a node's finding begins and ends. Pure, except for its state.

Time counts only between answers: the times ``for`` and ``endAfter`` stand still while the server does not answer. A
node is in one of three states in an answer: bad (returned), unknown (returned with NaN), or missing. A missing node is
not a good one: its exporter may be down.
"""

from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from muster_tainter.policy.sections.sources import MetricQuery


@dataclass(frozen=True)
class NodesAnswered:
    """Nodes of an answer. good: those that ``endQuery`` returned."""

    bad: AbstractSet[str] = frozenset()
    unknown: AbstractSet[str] = frozenset()
    good: AbstractSet[str] = frozenset()


@dataclass(frozen=True)
class MetricTurn:
    begun: tuple[str, ...]
    ended: tuple[str, ...]


@dataclass
class MetricWatch:
    """answered_s: seconds during which the server answered

    pending: by node, when it was first returned; open: by node with a finding, when it was last returned or unknown
    """

    rule: MetricQuery
    answered_s: float = 0.0
    pending: dict[str, float] = field(default_factory=dict)
    open: dict[str, float] = field(default_factory=dict)

    def adopt(self, node: str) -> None:
        """The node has this finding since before this process led."""
        self.open.setdefault(node, self.answered_s)

    def look(self, answer: NodesAnswered, elapsed_s: float, wait: AbstractSet[str] = frozenset()) -> MetricTurn:
        """elapsed_s: since the previous answer; 0 after one that failed. wait: nodes whose finding cannot begin yet."""
        self.answered_s += elapsed_s
        begun = []
        for node in sorted(answer.bad - self.open.keys()):
            since = self.pending.setdefault(node, self.answered_s)
            if self.answered_s - since >= self.rule.hold and node not in wait:
                begun.append(node)
        ended = []
        for node in self.open:
            if node in answer.bad or node in answer.unknown:
                self.open[node] = self.answered_s
            elif self._is_over(node, answer):
                ended.append(node)
        for node in ended:
            del self.open[node]
        self.open |= dict.fromkeys(begun, self.answered_s)
        self.pending = {node: at for node, at in self.pending.items() if node in answer.bad and node not in self.open}
        return MetricTurn(tuple(begun), tuple(ended))

    def _is_over(self, node: str, answer: NodesAnswered) -> bool:
        if self.rule.end_after is None:
            return node in answer.good
        return self.answered_s - self.open[node] >= self.rule.end_after

    def forget(self, node: str) -> None:
        """The node was removed."""
        self.pending.pop(node, None)
        self.open.pop(node, None)
