"""`rocm-smi --showrasinfo`, in the form of rocm_smi.py; the values are ours."""

import pytest
from tests.checks.bad_input import TEXTS, mangled

from muster_checks.base.execution import run_recorded
from muster_checks.base.vocabulary import FaultClass, Verdict
from muster_checks.gpuecc import GPUECC, GpueccParameters

TABLE = """
GPU[{gpu}]: \tRAS INFO
         Block       Status    uncorrectable err  correctable err
           UMC      ENABLED{first:>19}{second:>17}
          SDMA      ENABLED                  0                0
           GFX      ENABLED                  0                0
          FUSE     DISABLED
__________________________________________________________________
"""


def sample(*counts: tuple[int, int]) -> bytes:
    tables = [TABLE.format(gpu=gpu, first=first, second=second) for gpu, (first, second) in enumerate(counts)]
    return ("=========================== RAS Info ===========================\n" + "".join(tables)).encode()


def judged(text: bytes) -> list[tuple[str, str, Verdict, FaultClass]]:
    result = run_recorded(GPUECC, text, GpueccParameters())
    assert result is not None
    return [(one.component, one.reason, one.verdict, one.fault_class) for one in result.findings]


def test_gpus_without_an_error_pass() -> None:
    assert judged(sample((0, 0), (0, 0))) == [
        (f"gpu/index-{gpu}", "Ok", Verdict.PASS, FaultClass.NONE) for gpu in range(2)
    ]


@pytest.mark.parametrize("counts", [(3, 0), (0, 3)])
def test_an_error_only_warns_as_its_heading_is_not_reliable(counts: tuple[int, int]) -> None:
    assert judged(sample((0, 0), counts))[0] == ("gpu/index-1", "EccErrors", Verdict.WARN, FaultClass.CONTACT)


@pytest.mark.parametrize("text", [*TEXTS, *mangled(sample((0, 3), (1, 0)))])
def test_a_sample_cut_short_never_fails(text: bytes) -> None:
    result = run_recorded(GPUECC, text, GpueccParameters())
    assert result is None or result.verdict is not Verdict.FAIL
