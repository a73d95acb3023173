"""The nodes that cost most: each with its last outages and interrupted jobs. Pure, bounded.

Only what a node's own record or its own pods show counts. What is known through peers does not: owners of pods are the
tenant's word, and nobody may blame a node of others.
"""

from collections import deque
from collections.abc import Iterable

import msgspec

NODES_LIMIT = 128
HISTORY = 16  # entries of a node
WHAT_LIMIT = 64  # characters


class Entry(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """at: seconds since the epoch. what: the reason of the outage's first fault, or ``interrupted: CAUSE``. lost:
    accelerator-seconds; of an outage, those of its node without a pod."""

    at: float
    what: str
    lost: float


class Lemons:
    def __init__(self) -> None:
        self._nodes: dict[str, deque[Entry]] = {}

    def add(self, node: str, at: float, what: str, lost: float) -> None:
        """Replaces an entry of the same time and text: an outage that has ended now."""
        history = self._nodes.get(node)
        if history is None:
            history = self._nodes[node] = deque(maxlen=HISTORY)
        entry = Entry(round(at, 1), what[:WHAT_LIMIT], round(lost, 1))
        same = [i for i, each in enumerate(history) if (each.at, each.what) == (entry.at, entry.what)]
        if same:
            history[same[0]] = entry
        else:
            history.append(entry)
        if len(self._nodes) > NODES_LIMIT:
            del self._nodes[min(self._nodes, key=lambda name: self._rank(self._nodes[name]))]

    def forget(self, before: float) -> None:
        """Entries that are older, and nodes without a younger one."""
        for node, history in list(self._nodes.items()):
            while history and history[0].at < before:
                history.popleft()
            if not history:
                del self._nodes[node]

    @staticmethod
    def _rank(history: Iterable[Entry]) -> tuple[float, float]:
        """What is forgotten first: nodes with one small loss, the oldest of them first."""
        return sum(each.lost for each in history), max((each.at for each in history), default=0.0)

    def load(self, nodes: dict[str, list[Entry]]) -> None:
        for node, entries in nodes.items():
            for each in entries[-HISTORY:]:
                self.add(node, each.at, each.what, each.lost)

    def all(self) -> dict[str, list[Entry]]:
        return {node: list(history) for node, history in sorted(self._nodes.items())}
