"""What a dry run logs instead of writing: each decision about a node, once."""

import logging

from muster_tainter.faults.desired_state import Decision
from muster_tainter.faults.logs import audit_log

log = logging.getLogger(__name__)


class DryRunLog:
    def __init__(self) -> None:
        self._last: dict[str, object] = {}  # the last logged decision of each node

    def clear(self) -> None:
        self._last.clear()

    def forget(self, name: str) -> None:
        self._last.pop(name, None)

    def log(self, name: str, decision: Decision) -> None:
        logged = (decision.taints, decision.taint_changes, decision.isolates)
        if self._last.get(name, (None, (), frozenset())) != logged:
            self._last[name] = logged
            audit_log.log_taints(name, decision, dry_run=True)
            for component in sorted(decision.isolates):
                log.info("dry run: node %s: %s would be kept out of use alone", name, component)
