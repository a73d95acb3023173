"""`muster simulate --from-cluster`: the past of a real API server's nodes and of a real Prometheus, then simulated."""

import asyncio
import csv
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.docs.command_list import commands_of_test
from tests.docs.command_runner import CommandRunner

from muster_cli.__main__ import main
from muster_kube.api.client import KubeClient
from muster_kube.api.times import rfc3339, seconds
from muster_sandbox.controlplane.cluster import ControlPlane
from muster_sandbox.prometheus import Prometheus, PrometheusPrograms, find_programs
from muster_sandbox.simulation.nodes import NodeShape, SimulatedNodes

HOUR = 3600.0
DAYS = 2
STEP_S = 120
LOOKBACK_S = 300.0  # of Prometheus, for series that end without a marker, as these do
RACK = "topology.kubernetes.io/rack"
_FAULT = 'muster_agent_fault{{node="{}",check="dmesg",component="gpu/0000:3b:00.0",reason="Xid79",class="{}"}}'
_VERDICT = 'muster_agent_component_verdict{{node="{}",check="nvlink",component="gpu/1",verdict="FAIL"}}'
_READY = 'kube_node_status_condition{{node="{}",condition="Ready",status="true"}}'
_CORDONED = 'kube_node_spec_unschedulable{{node="{}"}}'


class Recorded:
    """Samples in the text format of OpenMetrics. begin: seconds since the epoch of hour 0."""

    def __init__(self, begin: float) -> None:
        self.begin = begin
        self._samples: dict[str, dict[str, dict[float, int]]] = {}  # by family, series and time

    def during(self, series: str, *spans: tuple[float, float], value: int = 1) -> None:
        """Hours."""
        samples = self._samples.setdefault(series.partition("{")[0], {}).setdefault(series, {})
        for first, last in spans:
            at = self.begin + first * HOUR
            while at < self.begin + last * HOUR:
                samples[at] = value
                at += STEP_S

    def outside(self, series: str, first: float, last: float) -> None:
        """1 all the time, and 0 during these hours."""
        self.during(series, (0, first), (last, 24 * DAYS))
        self.during(series, (first, last), value=0)

    def store(self, programs: PrometheusPrograms, folder: Path) -> None:
        folder.mkdir()
        text = []
        for name, family in self._samples.items():
            text.append(f"# TYPE {name} gauge")
            for series, samples in family.items():
                text += [f"{series} {value} {at:.0f}" for at, value in sorted(samples.items())]
        file = folder / "recorded.txt"
        file.write_text("\n".join([*text, "# EOF", ""]))
        words = [str(programs.promtool), "tsdb", "create-blocks-from", "openmetrics", str(file), str(folder / "data")]
        subprocess.run(words, check=True, capture_output=True)


@pytest.fixture(scope="module")
def programs() -> PrometheusPrograms:
    return find_programs(print)


@pytest.fixture
def recorded(programs: PrometheusPrograms, tmp_path: Path) -> Iterator[tuple[Recorded, Prometheus]]:
    """Nodes past-0 to past-3 of two days, and one that is gone."""
    past = Recorded(time.time() // HOUR * HOUR - 24 * DAYS * HOUR)
    for node in ("past-0", "past-1", "past-2", "past-3"):
        past.during(f'muster_agent_info{{node="{node}",version="1"}}', (0, 24 * DAYS))
    # the agent restarts in between
    past.during(_FAULT.format("past-0", "reboot"), (10, 11), (11.2, 12))
    past.during(_FAULT.format("gone", "replace"), (15, 16))
    past.during(_FAULT.format("past-1", "none"), (5, 6))
    past.during(_VERDICT.format("past-1"), (20, 21))
    past.outside(_READY.format("past-2"), 30, 31)
    past.outside(_READY.format("past-3"), 40, 41)
    past.during(_CORDONED.format("past-3"), (39, 42))
    past.store(programs, tmp_path / "prometheus")
    with Prometheus(programs, tmp_path / "prometheus", []) as running:
        yield past, running


async def muster(*words: object) -> int:
    return await asyncio.to_thread(main, ["simulate", *map(str, words)])


async def test_past_of_a_cluster_can_be_simulated(
    recorded: tuple[Recorded, Prometheus],
    control_plane: ControlPlane,
    api: KubeClient,
    fleet: SimulatedNodes,
    tmp_path: Path,
) -> None:
    past, prometheus = recorded
    names = await fleet.create(4, prefix="past", shape=NodeShape(labels={RACK: "r1"}))
    closed = {
        "check": "nic", "component": "nic/mlx5_0", "reason": "LinkDown", "occurrence": 1,
        "since": rfc3339(past.begin + 45 * HOUR), "closedAt": rfc3339(past.begin + 46 * HOUR),
    }  # fmt: skip
    record = {"metadata": {"annotations": {"muster.dev/faults": json.dumps({"closed": [closed]})}}}
    await api.patch(f"/api/v1/nodes/{names[3]}", record)
    folder = tmp_path / "past"
    placeholders = {
        "http://localhost:9090": prometheus.url, "past": str(folder), "past/fleet.yaml": str(folder / "fleet.yaml"),
        "past/faults.csv": str(folder / "faults.csv"), "past/result.html": str(folder / "result.html"),
    }  # fmt: skip
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environ = {"PATH": path, "KUBECONFIG": str(control_plane.kubeconfig)}
    runner = CommandRunner(commands_of_test(__file__), placeholders, environ)
    write, simulate = sorted(runner.left, key=lambda line: "--from-cluster" not in line)
    assert "maintenance" in await asyncio.to_thread(runner.type, write, "--since", "5d")

    document = yaml.safe_load((folder / "fleet.yaml").read_text())
    (group,) = (group for group in document["groups"] if "r1" in group.get("domain", {}).get("names", {}))
    assert group["domain"] == {"label": RACK, "names": {"gone": ["gone"], "r1": names}}
    assert abs(seconds(document["start"]) - past.begin) <= 2 * HOUR

    with (folder / "faults.csv").open() as file:
        rows = {(row["node"], row["reason"]): row for row in csv.DictReader(file) if row["node"] in (*names, "gone")}
    expected: dict[tuple[str, str], tuple[str, float, float]] = {
        ("past-0", "Xid79"): ("reboot", 10, 12),
        ("gone", "Xid79"): ("replace", 15, 16),
        ("past-1", ""): ("contact", 20, 21),
        ("past-2", "NotReady"): ("reboot", 30, 31),
        ("past-3", "LinkDown"): ("contact", 45, 46),
    }
    assert rows.keys() == expected.keys()
    for key, (fault_class, first, last) in expected.items():
        row: dict[str, Any] = rows[key]
        assert row["class"] == fault_class
        assert abs(seconds(row["start"]) - past.begin - first * HOUR) <= STEP_S
        assert 0 <= seconds(row["end"]) - past.begin - last * HOUR <= LOOKBACK_S + STEP_S

    result = json.loads(await asyncio.to_thread(runner.type, simulate, "--replicates", "0", "-o", "json"))
    assert not runner.left
    assert result["policies"][0]["faults"] >= len(expected)
    assert result["policies"][0]["measures"]["interruptions"]["value"] > 0

    # existing files are kept
    assert await muster("-", "--from-cluster", folder, "--kubeconfig", control_plane.kubeconfig) == 64


async def test_cluster_without_prometheus_remembers_a_day(
    control_plane: ControlPlane, api: KubeClient, fleet: SimulatedNodes, tmp_path: Path
) -> None:
    (name,) = await fleet.create(1, prefix="alone")
    since = time.time() - HOUR
    fault = {"check": "dmesg", "component": "gpu/0", "reason": "Xid79", "class": "reboot", "occurrence": 1}
    record = json.dumps({"open": [{**fault, "since": rfc3339(since)}]})
    await api.patch(f"/api/v1/nodes/{name}", {"metadata": {"annotations": {"muster.dev/faults": record}}})
    folder = tmp_path / "past"
    assert await muster("-", "--from-cluster", folder, "--kubeconfig", control_plane.kubeconfig) == 0
    found = csv.DictReader((folder / "faults.csv").read_text().splitlines())
    rows = [row for row in found if row["node"] == name]
    assert [(row["class"], row["end"]) for row in rows] == [("reboot", "")]
    assert abs(seconds(rows[0]["start"]) - since) <= 1
    document = yaml.safe_load((folder / "fleet.yaml").read_text())
    assert seconds(document["end"]) - seconds(document["start"]) == 24 * HOUR


async def test_prometheus_that_cannot_answer_is_named(
    programs: PrometheusPrograms,
    control_plane: ControlPlane,
    fleet: SimulatedNodes,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    await fleet.create(1, prefix="silent")
    folder = tmp_path / "past"
    words = "-", "--from-cluster", folder, "--kubeconfig", control_plane.kubeconfig, "--since", "1d"
    with Prometheus(programs, tmp_path / "prometheus", []) as running:
        url = running.url
        # it has no series of a cluster
        assert await muster(*words, "--prometheus", url) == 3
        assert "muster_agent_info" in capsys.readouterr().err
    assert await muster(*words, "--prometheus", url) == 3
    assert url in capsys.readouterr().err
    assert not list(folder.glob("*"))
