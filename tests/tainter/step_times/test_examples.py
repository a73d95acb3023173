"""The examples serve what the policy reads by default."""

import re
import runpy
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import prometheus_client
import pytest
import yaml

from muster_checks.containerlog.step_line import parse_step
from muster_tainter.policy.sections.sources import StepTimesSource

EXAMPLES = Path(__file__).parents[3] / "examples"
WHERE = StepTimesSource(url="http://p")


@pytest.fixture
def hooks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for PyTorch, which takes gigabytes."""
    hooks = ModuleType("torch.distributed.algorithms.ddp_comm_hooks.default_hooks")
    vars(hooks)["allreduce_hook"] = lambda *_: "reduced"
    distributed, torch = ModuleType("torch.distributed"), ModuleType("torch")
    vars(distributed)["get_rank"] = lambda: 11
    vars(torch).update(distributed=distributed, cuda=SimpleNamespace(is_available=lambda: False))
    for module in (torch, distributed, hooks):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setenv("LOCAL_RANK", "3")
    monkeypatch.setenv("JOB_NAME", "train")


def train(example: str, steps: int = 3) -> None:
    """PyTorch calls the hook once for each bucket of gradients."""
    registered = []
    model = SimpleNamespace(register_comm_hook=lambda state, hook: registered.append((state, hook)))
    times = runpy.run_path(str(EXAMPLES / example))["StepTimes"](model)
    [(state, hook)] = registered
    for _ in range(steps):
        times.begin()
        for last in (False, True):
            assert hook(state, SimpleNamespace(is_last=lambda last=last: last)) == "reduced"


@pytest.mark.usefixtures("hooks")
def test_the_pytorch_example_counts_steps_and_their_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    ports: list[int] = []
    registry = prometheus_client.CollectorRegistry()
    summary = prometheus_client.Summary
    monkeypatch.setattr(prometheus_client, "Summary", lambda *words: summary(*words, registry=registry))
    monkeypatch.setattr(prometheus_client, "start_http_server", ports.append)
    train("step_times_live.py")
    labels = {WHERE.rank_label: "11", WHERE.gpu_label: "3"}
    assert registry.get_sample_value(f"{WHERE.metric}_count", labels) == 3.0
    assert (registry.get_sample_value(f"{WHERE.metric}_sum", labels) or 0) > 0
    assert ports == [9403]


@pytest.mark.usefixtures("hooks")
def test_the_pytorch_example_prints_lines_that_the_agent_reads(capsys: pytest.CaptureFixture[str]) -> None:
    train("step_times_log.py")
    lines = [parse_step(line) for line in capsys.readouterr().out.splitlines()]
    assert [(line.rank, line.step, line.job, line.gpu) for line in lines] == [
        (11, step, "train", "3") for step in range(3)
    ]
    assert all(line.seconds > 0 for line in lines)


def test_the_scrape_configuration_copies_the_labels_that_name_jobs() -> None:
    monitor, job = yaml.safe_load_all((EXAMPLES / "step-times.yaml").read_text())
    copied = monitor["spec"]["podTargetLabels"]
    assert tuple(re.sub(r"[^A-Za-z0-9_]", "_", label) for label in copied) == WHERE.job_labels
    template = job["spec"]["template"]
    selected = monitor["spec"]["selector"]["matchLabels"]
    assert selected.items() <= template["metadata"]["labels"].items()
    ports = {port["name"] for each in template["spec"]["containers"] for port in each["ports"]}
    assert ports <= {each["port"] for each in monitor["spec"]["podMetricsEndpoints"]}
    for name in ports:
        assert re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,13}[a-z0-9])?", name)  # IANA_SVC_NAME, as the API server wants it
