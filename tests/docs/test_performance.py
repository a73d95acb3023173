"""docs/performance.md says what the results say: beyond its bound a figure is not met, without a result it is open."""

import copy
import importlib
import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from tests.docs.document_commands import ROOT


@pytest.fixture
def page(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    return importlib.import_module("performance")


def _rows(text: str) -> list[list[str]]:
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    return [row for row in rows if len(row) == 5 and row[0] != "promise"]


def _made(page: ModuleType, monkeypatch: pytest.MonkeyPatch, folder: Path, parts: dict[str, Any]) -> str:
    file = folder / "performance.json"
    file.write_text(json.dumps({"format": 1, "parts": parts}))
    monkeypatch.setattr(page, "RESULTS", file)
    text: str = page.files()[page.PAGE]
    return text


def test_without_results_every_promise_is_open(
    page: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    rows = _rows(_made(page, monkeypatch, tmp_path, {}))
    assert len(rows) == len(page.PROMISES)
    assert {row[3] for row in rows} == {"**open**"}


def test_a_size_that_was_not_measured_leaves_its_promise_open(page: ModuleType) -> None:
    def measured(*sizes: int) -> Any:
        return [{"fleet": size, "floor_ms": [10.0] * 9, "muster_ms": [11.0] * 9} for size in sizes]

    assert page._latency(measured(1, 5_000, 15_000)).met is True
    assert page._latency(measured(1, 5_000)).met is None
    worse = measured(1)
    _latency(worse)
    assert page._latency(worse).met is False


def test_what_tests_hold_names_tests_that_exist(page: ModuleType) -> None:
    assert [each.test for each in page.TESTED if not (ROOT / "tests" / each.test).is_file()] == []


def _latency(outcome: Any) -> None:
    outcome[0]["muster_ms"] = [10 * each for each in outcome[0]["muster_ms"]]


def _growth(outcome: Any) -> None:
    outcome["laws"][0]["too_fast"] = "exponent 2.00"
    outcome["fleets"][0]["rest_requests"] = 0.5


def _burst(outcome: Any) -> None:
    for each in outcome:
        each["muster"] = 1.0


def _takeover(outcome: Any) -> None:
    outcome["started"]["first_s"] = 5.1
    outcome["tainted_reboots"] = 1


WORSE: dict[str, Callable[[Any], None]] = {
    "latency": _latency,
    "growth": _growth,
    "burst": _burst,
    "selectivity": lambda outcome: outcome.update(others=1),
    "outage": lambda outcome: outcome["killed_s"].extend([9.0] * 50),
    "takeover": _takeover,
    "spares": lambda outcome: outcome["released_s"].append(1.5),
    "idle": lambda outcome: outcome["asked"].update({"patch nodes": 1}),
    "flood": lambda outcome: outcome.update(lost=1),
    "sync": lambda outcome: outcome["rest"].update(rss=10**9),
    "jobs": lambda outcome: outcome["written"].update({"pods: update": 1}),
    "outcomes": lambda outcome: outcome.update(dropped=1),
}


def test_a_figure_beyond_its_bound_is_not_met(
    page: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Each part that was measured, with a result that is worse than any bound."""
    parts = json.loads(page.RESULTS.read_text())["parts"]
    judged = {promise.part for promise in page.PROMISES}
    assert judged == WORSE.keys()
    worse = copy.deepcopy(parts)
    for part in judged & parts.keys():
        WORSE[part](worse[part]["outcome"])
    rows = _rows(_made(page, monkeypatch, tmp_path, worse))
    states = {(row[4].strip("`"), row[3]) for row in rows}
    assert states == {(part, "**not met**" if part in parts else "**open**") for part in judged}
