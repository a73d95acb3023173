"""From NVML, or from `nvidia-smi nvlink --status`."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.checks.bad_input import TEXTS, huge, mangled
from tests.checks.nvidia.on_bus import CHILD, XML, answer, failure, gpu_node
from tests.checks.nvidia.samples_of import H100, NVLINK_STATUS, of
from tests.checks.nvlink.test_judge import gpu

from muster_checks.base.commands import Output
from muster_checks.base.execution import run_probe, run_recorded
from muster_checks.base.vocabulary import Verdict
from muster_checks.nvidia.gpu import GpuReading
from muster_checks.nvlink import NVLINK, NvlinkParameters
from muster_checks.nvlink.parse import parse, parse_dcgmi
from muster_checks.testing.recorded import failed, hung

LIMITS = NvlinkParameters()
STATUS = "nvidia-smi nvlink --status"
NO_LIBRARY = failure(12)


async def test_links_come_with_the_reading_of_nvml(tmp_path: Path) -> None:
    view = gpu_node(tmp_path, of(gpu(0, down=[2]), gpu(1)))
    view.history.note("nvlink", {})  # not its first run: nothing is read twice
    result = await run_probe(NVLINK, view, LIMITS)
    assert (result.verdict, result.reason) == (Verdict.FAIL, "LinkInactive")


async def test_a_link_that_goes_down_between_two_runs_fails(tmp_path: Path) -> None:
    readings = [of(gpu(0, "NVIDIA A30", links=4)), of(gpu(0, "NVIDIA A30", links=4, down=[1]))]
    view = gpu_node(tmp_path, lambda _: answer(readings.pop(0)))
    view.history.note("nvlink", {})
    assert (await run_probe(NVLINK, view, LIMITS)).verdict is Verdict.PASS
    view.history.clock.now += 60  # type: ignore[attr-defined] # the test's clock
    result = await run_probe(NVLINK, view, LIMITS)
    assert (result.verdict, result.reason) == (Verdict.FAIL, "LinkDown")


async def test_without_nvml_a_second_command_is_asked(tmp_path: Path) -> None:
    view = gpu_node(tmp_path, {CHILD: NO_LIBRARY, XML: H100, STATUS: NVLINK_STATUS})
    view.history.note("nvlink", {})
    result = await run_probe(NVLINK, view, LIMITS)
    assert [(f.component, f.reason) for f in result.findings if f.verdict is Verdict.FAIL] == [
        ("gpu/0000:2a:00.0", "LinkInactive")
    ]


@pytest.mark.parametrize(
    "said",
    [
        failed(STATUS, 1),
        failed(STATUS, 127),
        failed(STATUS, -9),
        hung(STATUS),
        b"",
        b"nonsense\n",
        Output(argv=("x",), missing="not found"),
    ],
)
async def test_a_second_command_in_trouble_is_unknown(tmp_path: Path, said: "bytes | Output") -> None:
    view = gpu_node(tmp_path, {CHILD: NO_LIBRARY, XML: H100, STATUS: said})
    view.history.note("nvlink", {})
    result = await run_probe(NVLINK, view, LIMITS)
    assert (result.verdict, result.reason) == (Verdict.UNKNOWN, "SmiFailed")


async def test_expectations_that_cannot_be_used_are_unknown(tmp_path: Path) -> None:
    view = gpu_node(tmp_path, of(gpu(0), gpu(1)))
    result = await run_probe(NVLINK, view, NvlinkParameters(expected=tmp_path / "none.yaml"))
    assert (result.verdict, result.reason) == (Verdict.UNKNOWN, "BadExpectations")


DCGMI = b"""\
+----------------------+
|  NvLink Link Status  |
+----------------------+
GPUs:
    gpuId 0:
        U U U U U U U U U U U U U U U U U U
    gpuId 1:
        U U U U D U U U U U U U U U U U U U
NvSwitches:
    physicalId 11:
        U U D D
    physicalId 12:
        X X _ _

Key: Up=U, Down=D, Disabled=X, Not Supported=_
"""


def test_recorded_links_of_dcgmi_are_compared_with_those_of_the_other_gpus() -> None:
    result = run_recorded(NVLINK, DCGMI, LIMITS)
    assert result is not None
    found = {finding.component: (finding.verdict, finding.reason) for finding in result.findings}
    assert found == {
        "gpu/index-0": (Verdict.PASS, "Ok"),
        "gpu/index-1": (Verdict.WARN, "FewerLinksThanEquals"),
    }


def test_links_that_are_disabled_or_not_supported_are_no_links() -> None:
    reading = parse_dcgmi(DCGMI.replace(b"U U U U D", b"X X _ _ X"))
    assert reading is not None
    assert [len(gpu.nvlinks or ()) for gpu in reading.gpus] == [18, 13]


@pytest.mark.parametrize("text", [*TEXTS, *mangled(DCGMI)])
def test_the_output_of_dcgmi_cut_short_never_fails(text: bytes) -> None:
    result = run_recorded(NVLINK, text, LIMITS)
    assert result is None or result.verdict is not Verdict.FAIL


def test_the_status_text_is_read() -> None:
    reading = parse(NVLINK_STATUS)
    assert reading is not None
    assert [len(gpu.nvlinks or ()) for gpu in reading.gpus] == [18, 18]
    assert reading.gpus[1].nvlinks is not None
    assert [link.link for link in reading.gpus[1].nvlinks if not link.active] == [3]
    assert reading.gpus[0].nvlinks is not None
    assert reading.gpus[0].nvlinks[0].speed_mb_per_s == 26562.0


def test_a_gpu_whose_links_are_all_down_is_told_in_one_line() -> None:
    reading = parse(
        b"GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-0)\n"
        b"NVML: Unable to retrieve NVLink information as all links are inActive\n"
    )
    assert reading is not None
    assert [link.active for link in reading.gpus[0].nvlinks or ()] == [False]


def test_a_line_that_is_neither_speed_nor_inactive_is_named() -> None:
    reading = parse(b"GPU 0: NVIDIA H100 (UUID: GPU-0)\n\t Link 0: Unknown Error\n")
    assert reading is not None
    assert reading.gpus[0].errors == {"nvlink.0": "Unknown Error"}


@pytest.mark.parametrize("text", TEXTS)
def test_other_texts_are_of_another_kind(text: bytes) -> None:
    assert parse(text) is None


def test_spoilt_texts_are_read_as_far_as_they_go() -> None:
    for text in (*mangled(NVLINK_STATUS), huge(NVLINK_STATUS, b"Link 1: 26.562 GB/s\n")):
        assert isinstance(parse(text), GpuReading | None)


@given(st.binary(max_size=200))
@settings(max_examples=100, deadline=None)
def test_any_bytes_are_read(text: bytes) -> None:
    assert isinstance(parse(b"GPU 0: NVIDIA H100 (UUID: GPU-0)\n\t Link 0: " + text), GpuReading)
