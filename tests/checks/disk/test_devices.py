"""The check ``disk``: what the kernel still talks to, and what it gave up."""

from pathlib import Path
from typing import Any

import pytest
from tests.checks.bad_input import NO_VALUES

from muster_checks.base.execution import run_probe
from muster_checks.base.vocabulary import FaultClass, Finding, Verdict
from muster_checks.disk import DISK, DiskParameters
from muster_checks.testing.recorded import lay_out, node

Files = dict[str, str | int]


async def findings(root: Path, files: Files, **parameters: Any) -> list[Finding]:
    result = await run_probe(DISK, node(lay_out(root, files)), DiskParameters(smart=False, **parameters))
    return list(result.findings)


async def verdicts(root: Path, files: Files, **parameters: Any) -> list[tuple[str, str, Verdict]]:
    return [(f.component, f.reason, f.verdict) for f in await findings(root, files, **parameters)]


@pytest.mark.parametrize(
    ("state", "reason", "verdict"),
    [
        ("live", "Ok", Verdict.PASS),
        ("dead", "NvmeDead", Verdict.FAIL),
        ("resetting", "NvmeNotLive", Verdict.WARN),
        ("deleting (no IO)", "NvmeNotLive", Verdict.WARN),
        ("", "NotReadable", Verdict.UNKNOWN),
    ],
)
async def test_the_state_of_an_nvme_disk(tmp_path: Path, state: str, reason: str, verdict: Verdict) -> None:
    assert await verdicts(tmp_path, {"/sys/class/nvme/nvme0/state": state}) == [("disk/nvme0", reason, verdict)]


@pytest.mark.parametrize(
    ("state", "reason", "verdict"),
    [
        ("running", "Ok", Verdict.PASS),
        ("offline", "DiskOffline", Verdict.FAIL),
        ("transport-offline", "DiskOffline", Verdict.FAIL),
        ("blocked", "DiskNotRunning", Verdict.WARN),
        ("", "NotReadable", Verdict.UNKNOWN),
    ],
)
async def test_the_state_of_a_scsi_disk(tmp_path: Path, state: str, reason: str, verdict: Verdict) -> None:
    files: Files = {"/sys/block/sda/device/state": state, "/sys/block/sda/removable": 0}
    assert await verdicts(tmp_path, files) == [("disk/sda", reason, verdict)]


async def test_a_stick_that_can_be_pulled_is_no_disk_of_the_node(tmp_path: Path) -> None:
    assert await verdicts(tmp_path, {"/sys/block/sda/device/state": "offline", "/sys/block/sda/removable": 1}) == []


@pytest.mark.parametrize(
    ("level", "state", "degraded", "reason", "verdict"),
    [
        ("raid1", "clean", 0, "Ok", Verdict.PASS),
        ("raid1", "active", 1, "RaidDegraded", Verdict.WARN),
        ("raid0", "clean", "", "Ok", Verdict.PASS),
        ("raid0", "broken", "", "RaidFailed", Verdict.FAIL),
        ("raid5", "inactive", "", "RaidInactive", Verdict.WARN),
        ("raid1", "", "", "NotReadable", Verdict.UNKNOWN),
    ],
)
async def test_the_state_of_an_array(
    tmp_path: Path, level: str, state: str, degraded: int | str, reason: str, verdict: Verdict
) -> None:
    place = "/sys/block/md127/md"
    files: Files = {
        f"{place}/level": level,
        f"{place}/array_state": state,
        f"{place}/degraded": degraded,
    }
    assert await verdicts(tmp_path, files) == [("disk/md127", reason, verdict)]


async def test_a_degraded_array_says_whether_it_is_being_rebuilt(tmp_path: Path) -> None:
    place = "/sys/block/md0/md"
    files: Files = {f"{place}/array_state": "active", f"{place}/degraded": 1}
    [finding] = await findings(tmp_path, files | {f"{place}/sync_action": "recover"})
    assert "recover is running" in finding.message
    assert finding.fault_class is FaultClass.REPLACE
    [finding] = await findings(tmp_path, files | {f"{place}/sync_action": "idle"})
    assert "running" not in finding.message


async def test_an_nvme_disk_that_no_driver_took_warns(tmp_path: Path) -> None:
    place = "/sys/bus/pci/devices/0000:c1:00.0"
    files: Files = {
        f"{place}/vendor": "0x144d",
        f"{place}/device": "0xa80a",
        f"{place}/class": "0x010802",
    }
    assert await verdicts(tmp_path, files) == [("disk/0000:c1:00.0", "NvmeWithoutDriver", Verdict.WARN)]
    (tmp_path / "sys/bus/pci/drivers/vfio-pci").mkdir(parents=True)
    (tmp_path / f"{place.lstrip('/')}/driver").symlink_to("../../drivers/vfio-pci")
    assert await verdicts(tmp_path, files) == []


async def test_fewer_nvme_disks_than_expected_fail(tmp_path: Path) -> None:
    files: Files = {
        "/sys/class/nvme/nvme0/state": "live",
        "/sys/class/nvme/nvme1/state": "live",
        "/sys/class/nvme/nvme1/transport": "tcp",
    }
    assert ("host", "NvmeMissing", Verdict.FAIL) in await verdicts(tmp_path, files, min_nvme=2)
    assert [verdict for _, _, verdict in await verdicts(tmp_path, files, min_nvme=1)] == [Verdict.PASS] * 2
    assert await verdicts(tmp_path / "none", {}, min_nvme=1) == [("host", "NvmeMissing", Verdict.FAIL)]


@pytest.mark.parametrize("value", NO_VALUES)
async def test_no_state_that_cannot_be_read_is_a_failure(tmp_path: Path, value: object) -> None:
    files: Files = {
        "/sys/class/nvme/nvme0/state": str(value),
        "/sys/class/nvme/nvme0/transport": str(value),
        "/sys/block/sda/device/state": str(value),
        "/sys/block/md0/md/array_state": str(value),
        "/sys/block/md0/md/degraded": str(value),
    }
    assert Verdict.FAIL not in {finding.verdict for finding in await findings(tmp_path, files)}
