"""Fixtures for tests of checks. pytest finds them automatically if Muster is installed (entry point ``pytest11``).

It imports no check until a fixture is used: this does not slow down other tests of the environment, and coverage counts
a check's own modules from their first line.
"""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from muster_checks.testing.simulated_node import SimulatedNode


@pytest.fixture
def muster_node(tmp_path: Path) -> "SimulatedNode":
    """A node without hardware: give it files and recorded tool output, and run a check on it."""
    from muster_checks.testing.simulated_node import SimulatedNode

    root = tmp_path / "node"
    root.mkdir()
    return SimulatedNode(root)
