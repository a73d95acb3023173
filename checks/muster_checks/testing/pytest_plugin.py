"""Fixtures for tests of checks. pytest finds them by itself wherever Muster is installed (entry point ``pytest11``).

It imports no check before a fixture is used: other tests of the same environment are not slowed down, and coverage
counts the check's own modules from their first line.
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
