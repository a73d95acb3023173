"""The rows of AMD, Intel and AWS: what they ask for, and what ends them. samples/accelerators.yaml has the forms."""

import pytest

from muster_checks.base.vocabulary import FaultClass, Verdict

VENDORS = {"AMD", "AWS", "Intel"}
ERROR = "amdgpu 0000:c1:00.0: amdgpu: {14}socket: 0, die: 3, 2 new uncorrectable hardware errors detected in umc block"
TOTAL = "amdgpu 0000:c1:00.0: amdgpu: 2 uncorrectable hardware errors detected in umc block"
BEGUN = "amdgpu 0000:c1:00.0: amdgpu: GPU reset begin!. Source:  4"
DONE = "amdgpu 0000:c1:00.0: amdgpu: GPU reset(1) succeeded!"
FAILED = "amdgpu 0000:c1:00.0: amdgpu: GPU reset(1) failed"
LOST = "amdgpu 0000:c1:00.0: amdgpu: device lost from bus!"
HEARTBEAT = "habanalabs hl4: Device heartbeat failed! PCI link is healthy"
WEDGED = (
    "xe 0000:03:00.0: [drm] *ERROR* CRITICAL: Xe has declared device 0000:03:00.0 as wedged.\n"
    "IOCTLs and executions are blocked. Only a rebind may clear the failure\n"
    "amdgpu 0000:c1:00.0: amdgpu: device lost from bus!"
)
UNCORRECTABLE = ("gpu/0000:c1:00.0", "AmdGpuUncorrectable", "FAIL", "reset")


def rows(catalogue):
    return {row.name: row for row in catalogue.rows if row.vendor in VENDORS}


def reasons(bench):
    """Of the findings that are open."""
    return [found.reason for found in bench.judge.state().open]


def test_every_vendor_has_rows_and_each_is_a_row_of_its_own(catalogue):
    assert {row.vendor for row in rows(catalogue).values()} == VENDORS
    names = [row.name for row in catalogue.rows]
    assert len(names) == len(set(names))


def test_what_an_application_may_cause_never_fails(catalogue):
    asked = [row for row in rows(catalogue).values() if row.fault_class is FaultClass.RESTART_APP]
    assert len(asked) >= 7
    assert {row.verdict for row in asked} == {Verdict.WARN}


def test_the_rows_of_aws_only_warn(catalogue):
    assert {row.verdict for row in rows(catalogue).values() if row.vendor == "AWS"} == {Verdict.WARN}


def test_the_driver_s_own_reset_ends_an_uncorrectable_error(bench, summarize):
    assert summarize(bench.feed(ERROR)) == [UNCORRECTABLE]
    bench.feed(BEGUN, 1)
    bench.feed(DONE, 3)
    assert reasons(bench) == ["AmdGpuReset"]


@pytest.mark.parametrize(
    "line",
    [
        DONE.replace("c1", "c2"),
        "amdgpu 0000:c1:00.0: amdgpu: GPU reset succeeded, trying to resume",
        "amdgpu 0000:c1:00.0: [drm] device wedged, but recovered through reset",
        FAILED,
    ],
)
def test_nothing_else_ends_an_uncorrectable_error(line, bench):
    bench.feed(ERROR)
    bench.feed(line, 3)
    assert "AmdGpuUncorrectable" in reasons(bench)


def test_a_reset_that_succeeds_later_ends_one_that_failed(bench, summarize):
    assert summarize(bench.feed(FAILED)) == [("gpu/0000:c1:00.0", "AmdGpuResetFailed", "FAIL", "reboot")]
    bench.feed("amdgpu 0000:c1:00.0: amdgpu: GPU reset end with ret = -22", 1)
    bench.feed(DONE.replace("c1", "c2"), 8)
    assert reasons(bench) == ["AmdGpuResetFailed"]
    bench.feed(DONE, 9)
    assert reasons(bench) == []


def test_a_gpu_off_the_bus_is_not_also_reported_for_its_reset(bench, summarize):
    assert summarize(bench.feed(LOST)) == [("gpu/0000:c1:00.0", "AmdGpuLost", "FAIL", "reboot")]
    assert bench.feed(FAILED, 1) == []


def test_the_total_says_nothing_new_while_the_error_itself_is_open(bench, summarize):
    bench.feed(ERROR)
    assert bench.feed(TOTAL, 1) == []
    other = summarize(bench.feed(TOTAL.replace("c1", "c2"), 1))
    assert other == [("gpu/0000:c2:00.0", "AmdGpuUncorrectableCount", "FAIL", "reset")]


def test_the_driver_s_own_reset_ends_an_error_of_which_only_the_total_is_printed(bench):
    bench.feed(TOTAL)
    bench.feed(BEGUN, 1)
    assert reasons(bench) == ["AmdGpuUncorrectableCount", "AmdGpuReset"]
    bench.feed(DONE, 3)
    assert reasons(bench) == ["AmdGpuReset"]


def test_the_end_of_a_gaudi_s_reset_ends_its_heartbeat_fault(new_bench, summarize):
    bench = new_bench(names=lambda component: component.replace("hl4", "0000:33:00.0"))
    assert summarize(bench.feed(HEARTBEAT)) == [("gpu/0000:33:00.0", "HabanaHeartbeat", "FAIL", "reset")]
    bench.feed("habanalabs hl4: Going to reset device", 1)
    bench.feed("habanalabs 0000:33:00.0: Successfully finished resetting the 0000:33:00.0 device", 60)
    assert reasons(bench) == ["HabanaReset"]


def test_of_a_message_of_several_lines_the_first_decides(bench, summarize):
    assert summarize(bench.feed(WEDGED)) == [("gpu/0000:03:00.0", "XeWedged", "FAIL", "reboot")]


def test_a_line_of_the_neuron_runtime_names_its_error_and_device(bench):
    (sign,) = bench.feed("NEURON_HW_ERR=NC_UNCORRECTABLE_ERROR instance-id=i-1 hostname=ip-10-0-0-7 nd-id=12 nc-id=1")
    assert (sign.component, str(sign.verdict), str(sign.fault_class)) == ("neuron/12", "WARN", "replace")
    assert "NC_UNCORRECTABLE_ERROR" in sign.message
