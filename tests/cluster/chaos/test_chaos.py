"""Two minutes of what `make chaos` does for longer: everything around Muster breaks, and the audit log is the judge."""

from pathlib import Path

import pytest
from tests.chaos.chaos import Scale, clean, run_chaos
from tests.chaos.injections import ClusterFault, PartFault
from tests.chaos.run import evidence, report
from tests.machine import require

from muster_sandbox.controlplane.cluster import ControlPlane

SCALE = Scale(nodes=60, jobs=10, lasts_s=110.0, tainters=2, operators=2, agents=2, events_per_s=2.0)
SEED = 19


@pytest.mark.timeout(1800)  # on a busy machine each part takes its time to come back
async def test_two_minutes_of_chaos_leave_everything_right(control_plane: ControlPlane, tmp_path: Path) -> None:
    require("root", "unshare", "nsenter", "mount")
    try:
        verdict = await run_chaos(control_plane, tmp_path, SCALE, SEED, print)
    finally:
        await clean(control_plane)
    print("\n".join(report(verdict)))
    if verdict.violations:
        print("\n".join(evidence(tmp_path, control_plane.data)))
    assert verdict.violations == []
    assert verdict.kinds >= {*ClusterFault, *PartFault}
    assert sum(verdict.met.values()) > 0
