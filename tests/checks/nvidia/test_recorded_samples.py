"""Every light GPU check on whole documents, ours and recorded ones, and on spoilt ones."""

import pytest
from tests.checks.bad_input import TEXTS, mangled
from tests.checks.nvidia.samples_of import H100, LOST, NVLINK_STATUS, T4
from tests.shared_data import SharedData

from muster_checks.base.declaration import Check
from muster_checks.base.execution import run_recorded
from muster_checks.base.vocabulary import FaultClass, Result, Verdict
from muster_checks.gpuconfig import GPUCONFIG
from muster_checks.gpucount import GPUCOUNT
from muster_checks.gpuecc import GPUECC
from muster_checks.gpufabric import GPUFABRIC
from muster_checks.gpupower import GPUPOWER
from muster_checks.gputemp import GPUTEMP
from muster_checks.nvlink import NVLINK
from muster_checks.remapped import REMAPPED

CHECKS = (REMAPPED, GPUECC, GPUPOWER, GPUTEMP, GPUCOUNT, NVLINK, GPUFABRIC, GPUCONFIG)


def judged(check: Check, text: bytes) -> Result | None:
    return run_recorded(check, text, check.parameters())


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)
@pytest.mark.parametrize("sample", [H100, T4], ids=["h100", "t4"])
def test_healthy_nodes_pass_or_are_skipped(check: Check, sample: bytes) -> None:
    result = judged(check, sample)
    assert result is not None
    assert result.verdict is (Verdict.SKIP if check is NVLINK else Verdict.PASS)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)
@pytest.mark.parametrize("name", ["qx-h100", "qx-t4"])
def test_recorded_healthy_nodes_pass_or_are_skipped(check: Check, name: str, shared_data: SharedData) -> None:
    result = judged(check, shared_data.read(f"nvidia-smi/{name}.xml"))
    assert result is not None
    assert result.verdict is (Verdict.SKIP if check is NVLINK else Verdict.PASS)


def test_the_recorded_lost_gpu_and_the_failed_remapping_beside_it_are_found(shared_data: SharedData) -> None:
    text = shared_data.read("nvidia-smi/qx-gb200-lost.xml")
    found = [
        (finding.component, finding.reason)
        for check in (GPUCOUNT, REMAPPED)
        if (result := judged(check, text)) is not None
        for finding in result.findings
        if finding.verdict is Verdict.FAIL
    ]
    assert found == [("gpu/0000:0b:00.0", "GpuLost"), ("gpu/0000:0a:00.0", "RowRemapFailure")]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)
def test_a_gpu_that_passes_says_with_which_measurements(check: Check) -> None:
    result = judged(check, NVLINK_STATUS if check is NVLINK else H100)
    assert result is not None
    passed = [finding for finding in result.findings if finding.verdict is Verdict.PASS]
    assert passed
    assert check is GPUFABRIC or any(finding.measurements for finding in passed)


def test_the_lost_gpu_fails_gpucount_by_its_address() -> None:
    result = judged(GPUCOUNT, LOST)
    assert result is not None
    (finding,) = (finding for finding in result.findings if finding.verdict is Verdict.FAIL)
    assert (finding.component, finding.reason, finding.fault_class) == (
        "gpu/0001:0d:00.0",
        "GpuLost",
        FaultClass.REBOOT,
    )


@pytest.mark.parametrize("check", [check for check in CHECKS if check not in (GPUCOUNT, NVLINK)], ids=lambda c: c.name)
def test_the_lost_gpu_is_unknown_to_the_other_checks(check: Check) -> None:
    result = judged(check, LOST)
    assert result is not None
    of_lost = [finding for finding in result.findings if finding.component == "gpu/0001:0d:00.0"]
    assert [(finding.verdict, finding.reason) for finding in of_lost] == [(Verdict.UNKNOWN, "GpuLost")]


def test_the_failed_remapping_beside_it_is_found() -> None:
    result = judged(REMAPPED, LOST)
    assert result is not None
    assert (result.findings[0].component, result.findings[0].reason) == ("gpu/0001:0c:00.0", "RowRemapFailure")


def test_a_link_that_is_down_is_found_in_nvidia_smis_words() -> None:
    result = judged(NVLINK, NVLINK_STATUS)
    assert result is not None
    failed = [finding for finding in result.findings if finding.verdict is Verdict.FAIL]
    assert [(finding.component, finding.reason) for finding in failed] == [("gpu/index-1", "LinkInactive")]
    assert "link 3 down" in failed[0].message


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)
@pytest.mark.parametrize("text", TEXTS)
def test_other_texts_are_of_another_kind_or_unknown(check: Check, text: bytes) -> None:
    result = judged(check, text)
    assert result is None or result.verdict in (Verdict.UNKNOWN, Verdict.SKIP)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)
def test_a_spoilt_document_never_breaks_or_fails_a_check(check: Check) -> None:
    for text in mangled(T4):
        result = judged(check, text)
        assert result is None or result.verdict in (Verdict.PASS, Verdict.UNKNOWN, Verdict.SKIP)
        assert result is None or result.reason != "ProbeFailed"


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)
def test_messages_are_short_enough_to_be_published_whole(check: Check) -> None:
    for sample in (H100, LOST, NVLINK_STATUS):
        result = judged(check, sample)
        assert result is None or all(len(finding.message.encode()) <= 256 for finding in result.findings)
