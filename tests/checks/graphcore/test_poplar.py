"""What Poplar's errors ask for."""

import pytest
from tests.checks.graphcore.sample import sample

from muster_checks.base.vocabulary import FaultClass, Verdict
from muster_checks.graphcore.tools import poplar


@pytest.mark.parametrize("name", ["IPUSOFTERR", "SOC0PGMERR", "NMLINKDN1"])
def test_a_first_error_of_the_register_is_read_out_of_an_error(name):
    assert_read(name, sample("poplar_error_softerr.txt").replace(b"IPU 3", b"IPU 13"))


def test_every_first_error_of_the_register_is_read_out_of_an_error(shared_data):
    text = shared_data.read("ipu/poplar_error_softerr.txt").replace(b"IPU 0", b"IPU 13")
    lines = shared_data.text("ipu/ciuerrvr_firsterror.txt").split()
    assert len(lines) == 13
    for line in lines:
        assert_read(line.partition("=")[0], text)


def assert_read(name, text):
    text = text.replace(b"IPUSOFTERR", name.encode())
    (error,) = poplar.parse(text)
    assert error == poplar.PoplarError("IPU_RESET", name, "13")
    assert poplar.judge(error, "ipu/x").reason == f"Ciuerrvr:{name}"


@pytest.mark.parametrize(
    ("action", "verdict", "fault_class"),
    [
        ("IPU_RESET", Verdict.WARN, FaultClass.RESTART_APP),
        ("LINK_RESET", Verdict.FAIL, FaultClass.QUARANTINE),
        ("PARTITION_RESET", Verdict.FAIL, FaultClass.QUARANTINE),
        ("FULL_RESET", Verdict.FAIL, FaultClass.QUARANTINE),
        ("SOMETHING_NEW", Verdict.WARN, FaultClass.NONE),
    ],
)
def test_the_recovery_action_decides(action, verdict, fault_class):
    (error,) = poplar.parse(f"recoverable_runtime_error: [Recovery action: {action}] link down".encode())
    finding = poplar.judge(error, "ipu/unnamed")
    assert (finding.verdict, finding.fault_class, finding.reason) == (verdict, fault_class, "PoplarError")
    assert action in finding.message


def test_an_error_that_is_repeated_counts_once():
    assert len(poplar.parse(sample("poplar_error_softerr.txt") * 3)) == 1


def test_a_fault_of_the_program_is_no_fault_of_an_ipu():
    assert poplar.parse(b"application_runtime_error: [Recovery action: NONE] bad index\n") == []
