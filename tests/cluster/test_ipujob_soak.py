"""A small soak, the same that `make soak` runs for longer: every job ends with a true reason, and nothing is left."""

import pytest
from tests.soak.soak import CALL_S, SPACE, soak

from muster_kube.config import load_config
from muster_testbed.controlplane import ControlPlane

JOBS, FAULTS_S, SEED = 20, 12.0, 59


@pytest.mark.timeout(1800)  # after the faults each job takes its time, on a slow machine much of it
async def test_58_59_jobs_under_random_faults_all_end_with_a_true_reason_and_leave_nothing(
    control_plane: ControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("muster_kube.reflector.LIST_SILENCE_S", CALL_S)  # a minute otherwise, which `make soak` has
    control_plane.admin.create("/api/v1/namespaces", {"metadata": {"name": SPACE}})
    control_plane.admin.wait_until_exists(f"/api/v1/namespaces/{SPACE}/serviceaccounts/default")
    try:
        config = load_config(control_plane.kubeconfig)
        tally = await soak(config, jobs=JOBS, faults_s=FAULTS_S, seed=SEED, say=print)
    finally:
        control_plane.admin.delete(f"/api/v1/namespaces/{SPACE}")
    assert tally.wrong == []
    assert tally.jobs == JOBS
    assert tally.faults.total() > 5
