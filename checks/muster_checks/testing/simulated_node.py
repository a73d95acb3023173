"""A node made of files and recorded tool output, on which a check runs as in the agent."""

import asyncio
from collections.abc import Mapping
from pathlib import Path

from muster_checks.base.counter_history import History
from muster_checks.base.declaration import Check, NodeView
from muster_checks.base.execution import run_probe
from muster_checks.base.vocabulary import Result
from muster_checks.testing.recorded import Answer, RecordedCommands, lay_out


class SimulatedNode:
    """Its clock only advances by :meth:`wait`, so that rates are exact.

    root: the folder that stands for ``/``; view: the NodeView passed to a probe
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self._now_s = 1000.0
        self._commands = RecordedCommands({})
        self.view = NodeView(root, self._commands, History(lambda: self._now_s))

    def files(self, files: Mapping[str, str | int]) -> None:
        """Write files, each with a newline at its end: ``{"/sys/class/net/eth0/mtu": 1500}``."""
        lay_out(self.root, files)

    def tool(self, command: str, answer: Answer) -> None:
        """Set what ``command`` prints: text for a success, or an Output. The longest matching prefix of a command line
        is used; a tool without an answer is not installed."""
        self._commands.answers[command] = answer

    def wait(self, seconds: float) -> None:
        """Advance the clock, as between two runs of a check that watches counters."""
        self._now_s += seconds

    def run(self, check: Check, **parameters: object) -> Result:
        """Run ``check`` once. An error in its probe gives a result with verdict UNKNOWN, as in the agent.

        Raises pydantic.ValidationError for parameters that the check rejects, TypeError for a stream check.
        """
        if check.probe is None:
            raise TypeError(f"{check.name} is a stream and has no probe: test its judge")
        return asyncio.run(run_probe(check, self.view, check.parameters.model_validate(parameters)))
