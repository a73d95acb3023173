"""Results that are kept, and the page that is made of them."""

import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tests.bench.harness.results import plain, save


@dataclass(frozen=True)
class _Inner:
    rss: int = 1


@dataclass(frozen=True)
class _Outcome:
    share: float = 0.123456789
    inner: _Inner = _Inner()
    asked: Counter[tuple[str, str]] = field(default_factory=lambda: Counter({("patch", "nodes"): 3}))
    pair: tuple[float, float] = (1.0, 2.0)


def _save(file: Path, part: str) -> None:
    save(file, part, _Outcome(), table="a table", seconds=2.4, load=0.5, kubernetes="1.20", options={"rounds": 3})


def test_dataclasses_tuples_and_counters_become_json() -> None:
    assert json.loads(json.dumps(plain(_Outcome()))) == {
        "share": 0.123457,
        "inner": {"rss": 1},
        "asked": {"patch nodes": 3},
        "pair": [1.0, 2.0],
    }


def test_a_run_replaces_its_own_part_only(tmp_path: Path) -> None:
    file = tmp_path / "new" / "results.json"
    _save(file, "idle")
    _save(file, "burst")
    _save(file, "idle")
    found = json.loads(file.read_text())["parts"]
    assert list(found) == ["burst", "idle"]
    assert found["idle"]["machine"]["kubernetes"] == "1.20"
    assert found["idle"]["options"] == {"rounds": 3}


def test_a_file_that_is_something_else_is_left(tmp_path: Path) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("no JSON")
    with pytest.raises(ValueError, match="Expecting value"):
        _save(file, "idle")
    assert file.read_text() == "no JSON"
