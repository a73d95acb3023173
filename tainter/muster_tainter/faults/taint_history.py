"""Changes of a Node's taints that the watch delivered: the evidence for who removed a taint.

Kept in this process only. A new leader has no evidence, and sets missing taints again.
"""

from collections.abc import Callable

from muster_kube.api.objects import Node, Taint
from muster_tainter.faults.desired_state import is_ours
from muster_tainter.faults.record.node_record import read_record
from muster_tainter.faults.record_trust import trusted_record
from muster_tainter.faults.taint_drift import TaintRemoval
from muster_tainter.policy.rules import Policy

_FOREIGN_FOR_S = 600.0


class TaintHistory:
    """``note`` every change of a Node; ``removal`` describes how a taint of ours was removed. ``clock``: monotonic."""

    def __init__(self, clock: Callable[[], float], policy: Callable[[], Policy]) -> None:
        self._clock = clock
        self._policy = policy
        self._foreign: dict[str, float] = {}  # when a taint of others last changed
        self._removals: dict[str, TaintRemoval] = {}

    def note(self, name: str, old: Node | None, new: Node | None) -> None:
        if new is None:
            self._foreign.pop(name, None)
            self._removals.pop(name, None)
            return
        if old is None or old.spec.taints == new.spec.taints:
            return
        now = self._clock()
        memory = trusted_record(read_record(new), new, self._policy())
        changed = set(old.spec.taints) ^ set(new.spec.taints)
        last = self._foreign.get(name)
        settled_s = float("inf") if last is None else now - last
        if any(not is_ours(taint, memory) for taint in changed):
            self._foreign[name] = now
            self._forget_old(now)
        gone = [taint for taint in old.spec.taints if is_ours(taint, memory) and not _has_slot(taint, new)]
        if gone:
            self._removals[name] = TaintRemoval(before=old.spec.taints, after=new.spec.taints, settled_s=settled_s)
        elif name in self._removals:
            # after a later change, the list at the removal no longer identifies who removed it
            del self._removals[name]

    def removal(self, name: str) -> TaintRemoval | None:
        return self._removals.get(name)

    def _forget_old(self, now: float) -> None:
        if len(self._foreign) > 1024:
            self._foreign = {k: v for k, v in self._foreign.items() if now - v < _FOREIGN_FOR_S}


def _has_slot(taint: Taint, node: Node) -> bool:
    return any((t.key, t.effect) == (taint.key, taint.effect) for t in node.spec.taints)
