"""The goodput ledger on a real API server: its books close, and its causes are those of the injector."""

import asyncio
import json
import shlex
import subprocess
import sys

import pytest
from tests.docs.command_list import commands_of_test
from tests.soak.goodput import goodput_soak

from muster_kube.api.config import load_config
from muster_sandbox.controlplane.cluster import ControlPlane


async def test_the_books_close_and_name_the_cause_of_each_end_under_three_leaders(
    control_plane: ControlPlane, namespace: str
) -> None:
    truth = await goodput_soak(load_config(control_plane.kubeconfig), namespace, rounds=1, seed=7, say=lambda _: None)
    assert truth.judge() == []
    assert sum(truth.found.values()) == pytest.approx(truth.held, rel=0.01)
    for cause, seconds in truth.booked.items():
        assert truth.found[cause] == pytest.approx(seconds, rel=0.01, abs=8 * 5), cause
    for line in sorted(commands_of_test(__file__)):
        options = ["--namespace", namespace, "--kubeconfig", str(control_plane.kubeconfig)]
        program = [sys.executable, "-m", "muster_cli", *shlex.split(line)[1:], *options]
        ended = await asyncio.create_subprocess_exec(*program, stdout=subprocess.PIPE)
        printed, _ = await ended.communicate()
        assert ended.returncode == 0, line
        if "json" in line:
            report = json.loads(printed)
            assert sum(report["total"]["work"].values()) == pytest.approx(truth.held / 3600, rel=0.01)
            assert report["lemons"]
            assert all(lemon["node"].startswith("goodput-") for lemon in report["lemons"])
