"""A node that is read and judged again and again, by a clock that only this moves."""

from pathlib import Path

from muster_checks.base.declaration import NodeView
from muster_checks.base.vocabulary import Finding, Verdict
from muster_checks.testing.recorded import node

DAYS_S = 500_000.0


class NodeOverTime:
    """``findings()`` is for a check to fill in: what it finds a minute later."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.now = 1000.0
        self.up_for_s: float | None = DAYS_S
        self.view: NodeView = node(root, clock=lambda: self.now)

    def findings(self, *arguments: object, **named: object) -> list[Finding]:
        raise NotImplementedError

    def bad(self, *arguments: object, **named: object) -> list[tuple[str, Verdict, str]]:
        """Component, verdict and reason of each finding that does not pass."""
        found = self.findings(*arguments, **named)
        return [(f.component, f.verdict, f.reason) for f in found if f.verdict is not Verdict.PASS]
