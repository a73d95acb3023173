"""The goodput ledger on a real API server: its books close, its causes are those of the injector, and the simulation of
the same faults and jobs has the same hours."""

import asyncio
import base64
import json
import math
import shlex
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest
from tests.docs.command_list import commands_of_test
from tests.soak.goodput import goodput_soak

from muster_kube.api.client import KubeClient
from muster_kube.api.config import load_config
from muster_sandbox.controlplane.cluster import ControlPlane
from muster_tainter.goodput.books import DAY_S
from muster_tainter.goodput.state import KEY, NAME, write_state
from muster_tainter.goodput.store import GoodputMap


async def back_to_the_present(control_plane: ControlPlane, namespace: str) -> None:
    """The soak's clock is days ahead; the command's is not."""
    async with KubeClient(load_config(control_plane.kubeconfig)) as api:
        path = f"/api/v1/namespaces/{namespace}/configmaps/{NAME}"
        state = (await api.get(path, type=GoodputMap)).state(time.time() + 366 * DAY_S)
        days = math.ceil((state.at - time.time()) / DAY_S) * DAY_S
        earlier = msgspec.structs.replace(
            state,
            since=state.since - days,
            at=state.at - days,
            buckets=tuple(msgspec.structs.replace(each, start=each.start - days) for each in state.buckets),
            lemons={
                node: [msgspec.structs.replace(each, at=each.at - days) for each in history]
                for node, history in state.lemons.items()
            },
            gaps=tuple(
                msgspec.structs.replace(each, begin=each.begin - days, end=each.end - days) for each in state.gaps
            ),
        )
        await api.patch(path, {"binaryData": {KEY: base64.b64encode(write_state(earlier)).decode()}})


async def test_the_books_close_and_name_the_cause_of_each_end_under_three_leaders(
    control_plane: ControlPlane, namespace: str, tmp_path: Path
) -> None:
    config = load_config(control_plane.kubeconfig)
    truth = await goodput_soak(config, namespace, rounds=1, seed=7, folder=tmp_path, say=lambda _: None)
    assert truth.judge() == []
    assert sum(truth.found.values()) == pytest.approx(truth.held, rel=0.01)
    for cause, seconds in truth.booked.items():
        assert truth.found[cause] == pytest.approx(seconds, rel=0.01, abs=8 * 5), cause
    await back_to_the_present(control_plane, namespace)
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
