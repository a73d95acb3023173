"""The fixture that people write the tests of their own checks with."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import Field, ValidationError

from muster_checks.base.declaration import Check, Cost, NodeView, Parameters
from muster_checks.base.execution import CannotTell
from muster_checks.base.vocabulary import Finding, Verdict
from muster_checks.dmesg import DMESG
from muster_checks.testing.recorded import Answer, failed
from muster_checks.testing.simulated_node import SimulatedNode

PAGE = Path(__file__).resolve().parents[3] / "docs/plugins.md"


class WidgetParameters(Parameters):
    most_per_minute: float = Field(default=5, ge=0)


async def _probe(node: NodeView, parameters: WidgetParameters) -> list[Finding]:
    output = await node.commands.run(("widgets", "--count"), timeout_s=1)
    if not output.ok:
        raise CannotTell(output.trouble)
    node.history.note("widgets", {"made": float(output.stdout)})
    made = node.history.of("widgets")["made"].rise(60.0).amount
    verdict = Verdict.WARN if made > parameters.most_per_minute else Verdict.PASS
    return [Finding(component="host", verdict=verdict, reason="Widgets", message=str(made))]


WIDGETS = Check(
    name="widgets",
    description="widgets made",
    cost=Cost.LIGHT,
    parameters=WidgetParameters,
    timeout_s=5.0,
    period_s=60.0,
    devices=("host",),
    probe=_probe,
)


def test_the_example_of_the_page_passes_as_written(tmp_path: Path) -> None:
    for name in ("muster_loadavg.py", "test_loadavg.py"):
        example = re.search(rf"`{name}`:\n\n```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
        assert example, name
        (tmp_path / name).write_text(example[1])
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)]
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, check=False)
    assert (done.returncode, "2 passed" in done.stdout) == (0, True), done.stdout + done.stderr


@pytest.mark.parametrize(("answer", "verdict"), [("3", Verdict.PASS), (failed("widgets", 2), Verdict.UNKNOWN)])
def test_a_tool_prints_what_was_recorded(muster_node: SimulatedNode, answer: Answer, verdict: Verdict) -> None:
    muster_node.tool("widgets --count", answer)
    assert muster_node.run(WIDGETS).verdict is verdict


def test_a_tool_without_an_answer_is_not_installed(muster_node: SimulatedNode) -> None:
    muster_node.tool("widgets --list", "a\nb\n")
    assert muster_node.run(WIDGETS).verdict is Verdict.UNKNOWN


@pytest.mark.parametrize(("waited_s", "verdict"), [(60, Verdict.WARN), (3600, Verdict.PASS)])
def test_counters_are_watched_by_a_clock_that_the_test_moves(
    muster_node: SimulatedNode, waited_s: float, verdict: Verdict
) -> None:
    muster_node.tool("widgets", "0")
    muster_node.run(WIDGETS)
    muster_node.wait(waited_s)
    muster_node.tool("widgets", "100")
    assert muster_node.run(WIDGETS).verdict is verdict


def test_bad_parameters_and_checks_that_stream_are_the_test_authors_mistakes(muster_node: SimulatedNode) -> None:
    with pytest.raises(ValidationError, match="most_per_minute"):
        muster_node.run(WIDGETS, most_per_minute=-1)
    with pytest.raises(ValidationError, match="most_per_hour"):
        muster_node.run(WIDGETS, most_per_hour=1)
    with pytest.raises(TypeError, match="dmesg"):
        muster_node.run(DMESG)
