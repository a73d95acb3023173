"""A folder of plug-ins to fill, executables in it, and a node whose clock is moved by hand."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from muster_checks.base.counter_history import History
from muster_checks.base.declaration import NodeView


@dataclass
class Bench:
    """``script`` writes an executable, ``config`` a JSON file; ``now_s`` is what the node's clock shows."""

    folder: Path
    now_s: float = 1000.0

    def script(self, name: str, text: str) -> str:
        path = self.folder / name
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
        return f"./{name}"

    def config(self, name: str, document: object) -> Path:
        path = self.folder / name
        path.write_text(document if isinstance(document, str) else json.dumps(document))
        return path

    @property
    def node(self) -> NodeView:
        return NodeView(history=History(lambda: self.now_s))


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    folder = tmp_path / "plugins"
    folder.mkdir()
    return Bench(folder)


@pytest.fixture(scope="session")
def samples() -> Path:
    return Path(__file__).parent / "samples"


@pytest.fixture(scope="session")
def dumps() -> Path:
    return Path(__file__).parents[1] / "dmesg/samples/dumps"


@pytest.fixture
def custom() -> Callable[..., dict[str, object]]:
    """A custom plug-in monitor's file: ``custom(rule, …, timeout="1s")``; condition ``Broken`` is there."""

    def make(*rules: dict[str, object], source: str = "mine", **overall: object) -> dict[str, object]:
        return {
            "plugin": "custom",
            "pluginConfig": overall,
            "source": source,
            "conditions": [{"type": "Broken", "reason": "NotBroken", "message": "it works"}],
            "rules": [{"type": "temporary", "reason": f"Reason{i}", **rule} for i, rule in enumerate(rules)],
        }

    return make
