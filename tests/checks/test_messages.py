"""The words of messages that people read first. Each message is held here once; other tests assert what it says."""

import pytest
from tests.checks.dmesg.judge.conftest import Bench

from muster_checks.base.commands import Output
from muster_checks.base.declaration import Sign
from muster_checks.dcgm.judge import judge as judge_diagnosis
from muster_checks.dcgm.parse import DcgmEntity, DcgmStatus, DcgmTestResult, Diagnosis, DiagnosisError
from muster_checks.dmesg.catalogue.loader import load_catalogue
from muster_checks.pciebw.bandwidth import Bandwidth
from muster_checks.pciebw.judge import PciebwLimits
from muster_checks.pciebw.judge import judge as judge_bandwidth
from muster_checks.registry import UnknownCheck, load_registry, select_checks


def sign_of(line: str) -> Sign:
    (sign,) = Bench(load_catalogue()).feed(line)
    assert isinstance(sign, Sign)
    return sign


def test_an_xid() -> None:
    sign = sign_of("NVRM: Xid (PCI:0000:b3:00): 79, pid=1")
    assert sign.message == "Xid 79 on gpu/0000:b3:00.0: GPU has fallen off the bus; needs a reboot"


def test_an_sxid() -> None:
    line = "nvidia-nvswitch0: SXid (PCI:0000:c3:00.0): 24007, Fatal, Link 28 sourcetrack timeout error (First)"
    message = "SXid 24007 on nvswitch/0000:c3:00.0: sourcetrack timeout error, link 28; needs a reset"
    assert sign_of(line).message == message


def test_a_test_of_dcgm_that_measured_nothing() -> None:
    error = DiagnosisError(56, "Cannot allocate memory")
    outcome = DcgmTestResult("pcie", DcgmStatus.FAIL, (DcgmEntity("GPU", 5),), (error,))
    (finding,) = judge_diagnosis(Diagnosis((outcome,)), {5: "0000:bd:00.0"})
    assert finding.message == (
        "pcie could not be measured: Cannot allocate memory (DCGM_FR_MEMORY_ALLOC; another process holds the memory)"
    )


def test_the_bandwidth_of_a_sound_gpu() -> None:
    limits = PciebwLimits(
        min_bandwidth_gb_per_s=4.0,
        min_ipu_bandwidth_gb_per_s=0.0,
        min_share_of_link=0.25,
        warn_share_of_link=0.6,
        min_share_of_others=0.5,
        warn_share_of_others=0.8,
    )
    (finding,) = judge_bandwidth([Bandwidth("gpu/a", 25.123, 26.0)], {}, limits)
    assert finding.message == "to device 25.1 GB/s, from device 26.0 GB/s"


@pytest.mark.parametrize(
    ("output", "message"),
    [
        (Output(argv=("sh",), exit_code=127, stderr=b"cannot open device\n"), "sh: exit code 127: cannot open device"),
        (Output(argv=("sh",), exit_code=-11), "sh: killed by SIGSEGV"),
        (Output(argv=("x",), exit_code=-99, stderr=b"why"), "x: killed by signal 99: why"),
        (Output(argv=("gc-info",), timed_out=True, duration_s=300.0), "gc-info: no end after 300 s, killed"),
        (Output(argv=("gc-info",), missing="not found"), "gc-info: not found"),
    ],
)
def test_a_command_that_came_to_nothing(output: Output, message: str) -> None:
    assert output.trouble == message


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("dmseg", 'unknown check "dmseg": did you mean "dmesg"? Run "muster checks" to list all checks'),
        ("qqq", 'unknown check "qqq": run "muster checks" to list all checks'),
    ],
)
def test_an_unknown_check(name: str, message: str) -> None:
    with pytest.raises(UnknownCheck) as refused:
        select_checks([name], load_registry(plug_ins=[]))
    assert str(refused.value) == message
