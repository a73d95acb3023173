"""A small soak, the same that `make soak` runs for longer: every job ends with a true reason, and nothing is left."""

import os
import re
from pathlib import Path

import pytest
from tests.docs.checkout import checkout
from tests.docs.command_list import commands_of_test
from tests.docs.command_runner import CommandRunner
from tests.shared_data import VARIABLE, find_folder
from tests.soak.soak import CALL_S, SPACE, soak

from muster_kube.api.config import load_config
from muster_sandbox.controlplane.cluster import ControlPlane

JOBS, FAULTS_S, SEED = 20, 12.0, 59


@pytest.mark.timeout(1800)  # after the faults each job takes its time, on a slow machine much of it
async def test_58_59_jobs_under_random_faults_all_end_with_a_true_reason_and_leave_nothing(
    control_plane: ControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "muster_kube.controller.reflector.LIST_SILENCE_S", CALL_S
    )  # a minute otherwise, which `make soak` has
    control_plane.admin.create_namespace(SPACE)
    try:
        config = load_config(control_plane.kubeconfig)
        tally = await soak(config, jobs=JOBS, faults_s=FAULTS_S, seed=SEED, say=print)
    finally:
        control_plane.admin.delete(f"/api/v1/namespaces/{SPACE}")
    assert tally.wrong == []
    assert tally.jobs == JOBS
    assert tally.faults.total() > 5


@pytest.mark.usefixtures("binaries")
def test_make_soak_says_which_faults_there_were_and_how_each_job_ended(tmp_path: Path) -> None:
    folder = checkout(tmp_path / "muster")
    samples = find_folder(os.environ)  # the copy does not stand beside them
    environ = {
        "ARGS": "--examples 1 --jobs 2 --rounds 3 --minutes 0.02 --seed 7",
        **({VARIABLE: str(samples)} if samples else {}),
    }
    typist = CommandRunner(commands_of_test(__file__), {}, environ, folder)
    said = [line.partition(" s  ")[2] for line in typist.type("make soak").splitlines()]
    begun = [line for line in said if line.endswith(", --seed 7")]
    assert [line.split()[:2] for line in begun] == [["1", "examples"], ["2", "jobs,"], ["goodput", "ledger:"]]
    (ends,) = (line for line in said if re.match(r"2 jobs: .*; \d+ restarts, \d+ moves$", line))
    assert sum(map(int, re.findall(r"[:,] (\d+) ", ends.partition(";")[0]))) == 2, ends
    assert re.search(r" \d+ s ", said[-1]), "how long it took after the faults"
    assert (folder / "build/soak.log").exists()
    assert not typist.left
