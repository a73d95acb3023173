"""An all-reduce over the node's GPUs: correct, and fast enough."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.checks.bad_input import TEXTS, UNMEASURED, huge, mangled, verdicts_of
from tests.checks.nvidia.on_bus import CHILD, answer, put_gpus

from muster_checks.base.execution import run_probe, run_recorded
from muster_checks.base.vocabulary import FaultClass, Finding, Verdict
from muster_checks.nccl import NCCL, NcclParameters
from muster_checks.nccl.parse import parse
from muster_checks.nccl.probe import judge_recorded
from muster_checks.nvidia.gpu import Gpu, GpuReading
from muster_checks.testing.recorded import Answer, failed, hung, lay_out, node

SAMPLE = (Path(__file__).parent / "samples" / "h100x8.txt").read_bytes()
SLOW = SAMPLE.replace(b"466.37", b"231.00").replace(b"  1073741824 ", b" 17179869184 ")
# rccl-tests prints the same table
RCCL = SAMPLE.replace(b"NVIDIA H100 80GB HBM3", b"AMD Instinct MI300X")
OLD = b"""#                                             out-of-place                    in-place
#       size    count    type   redop     time   algbw   busbw  error     time   algbw   busbw  error
   134217728 33554432   float     sum   1542.0   87.04  163.20  2e-07   1546.1   86.81  162.76  2e-07
"""


def judged(text: bytes, **parameters: object) -> Finding:
    findings = judge_recorded(text, NcclParameters(**parameters))
    assert findings is not None
    (finding,) = findings
    return finding


async def run(tmp_path: Path, said: Answer | None, gpus: int = 8, nvml: Answer | None = None):
    for n in range(gpus):
        folder = f"/sys/bus/pci/devices/0000:{n:02x}:00.0"
        lay_out(tmp_path, {f"{folder}/vendor": "0x10de", f"{folder}/device": "0x2330", f"{folder}/class": "0x030200"})
    answers = {"all_reduce_perf": said, CHILD: nvml}
    view = node(tmp_path, {name: text for name, text in answers.items() if text is not None})
    return await run_probe(NCCL, view, NcclParameters()), view.commands


async def test_the_slower_way_at_the_largest_size_is_what_counts(tmp_path: Path):
    result, commands = await run(tmp_path, SAMPLE)
    assert result.verdict is Verdict.PASS
    measured = {m.name: (m.value, m.threshold) for m in result.findings[0].measurements}
    assert measured == {"bus_bandwidth": (466.37, 460.0), "wrong_elements": (0, 0.0)}
    line, _ = commands.calls[-1]
    assert line[line.index("-g") + 1] == "8"


def test_slower_than_the_models_value_fails_and_names_its_source():
    finding = judged(SLOW)
    assert (finding.verdict, finding.reason) == (Verdict.FAIL, "SlowAllReduce")
    assert "Azure" in finding.message


def test_the_value_of_a_large_message_only_warns_of_a_smaller_one():
    finding = judged(SAMPLE.replace(b"466.37", b"451.00"))
    assert (finding.verdict, finding.reason, finding.fault_class) == (Verdict.WARN, "SlowAllReduce", FaultClass.NONE)


async def test_a_low_figure_beside_a_job_proves_nothing(tmp_path: Path):
    busy = Gpu(index=0, address="0000:00:00.0", memory_used_mib=70_000.0)
    result, _ = await run(tmp_path, SLOW, nvml=answer(GpuReading(source="nvml", gpus=(busy,))))
    assert (result.verdict, result.reason) == (Verdict.UNKNOWN, "InUse")


async def test_a_gpu_given_to_a_virtual_machine_is_left_out(tmp_path: Path):
    put_gpus(tmp_path, "0000:0f:00.0", driver="vfio-pci")
    _, commands = await run(tmp_path, SAMPLE, gpus=4)
    line, _ = commands.calls[-1]
    assert line[line.index("-g") + 1] == "4"


def test_the_operators_value_wins():
    assert judged(SLOW, min_bus_bandwidth_gb_per_s=200).verdict is Verdict.PASS
    assert judged(SAMPLE, min_bus_bandwidth_gb_per_s=470).verdict is Verdict.FAIL


def test_another_number_of_gpus_is_not_held_against_the_value_for_eight():
    four = b"\n".join(line for line in SLOW.split(b"\n") if b"device  7" not in line)
    assert judged(four).verdict is Verdict.PASS


@pytest.mark.parametrize("reached", [b"466.37", b"  1.00"])
def test_no_bandwidth_is_expected_of_amds_gpus_for_which_none_is_published(reached: bytes):
    finding = judged(RCCL.replace(b"466.37", reached))
    assert (finding.verdict, finding.reason) == (Verdict.PASS, "AllReduced")
    assert finding.measurements[0].threshold is None


def test_wrong_results_of_amds_gpus_fail():
    finding = judged(RCCL.replace(b"values : 0 OK", b"values : 3 FAILED"))
    assert (finding.verdict, finding.reason) == (Verdict.FAIL, "WrongResult")


@pytest.mark.parametrize(
    "text",
    [
        SAMPLE.replace(b"466.37      0", b"466.37      9"),
        SAMPLE.replace(b"values : 0 OK", b"values : 3 FAILED"),
    ],
)
def test_wrong_results_fail_however_fast(text: bytes):
    finding = judged(text)
    assert (finding.verdict, finding.reason) == (Verdict.FAIL, "WrongResult")


def test_the_older_table_is_read_too():
    (row,) = parse(OLD).rows
    assert (row.bus_gb_per_s, row.wrong) == ((163.2, 162.76), None)


async def test_wrong_results_end_the_tool_with_1_and_are_still_read(tmp_path: Path):
    text = SAMPLE.replace(b"values : 0 OK", b"values : 3 FAILED")
    result, _ = await run(tmp_path, failed("all_reduce_perf", 1, stdout=text))
    assert result.verdict is Verdict.FAIL


@pytest.mark.parametrize(
    "answer",
    [
        failed("all_reduce_perf", 1, b"NCCL failure"),
        failed("all_reduce_perf", 127),
        failed("all_reduce_perf", -11, stdout=SAMPLE),
        hung("all_reduce_perf"),
        SAMPLE.replace(b"466.57", b"N/A").replace(b"466.37", b"N/A"),
    ],
)
async def test_a_run_that_broke_is_unknown(tmp_path: Path, answer: Answer):
    result, _ = await run(tmp_path, answer)
    assert (result.verdict, result.reason) == (Verdict.UNKNOWN, "NcclFailed")


async def test_one_gpu_has_nobody_to_reduce_with(tmp_path: Path):
    assert (await run(tmp_path, SAMPLE, gpus=1))[0].verdict is Verdict.SKIP


async def test_without_the_tool_it_is_named(tmp_path: Path):
    result, _ = await run(tmp_path, None)
    assert (result.reason, "nccl-tests" in result.message) == ("ToolMissing", True)


@pytest.mark.parametrize("text", [*TEXTS, b"busbw" + TEXTS[3]])
def test_text_of_another_kind_never_fails(text: bytes):
    result = run_recorded(NCCL, text, NcclParameters())
    assert result is None or result.verdict is Verdict.UNKNOWN


def test_a_hundred_megabytes_never_fail():
    test_text_of_another_kind_never_fails(huge(b"busbw\n"))


def test_a_sample_cut_short_never_fails_for_what_is_not_there():
    for text in mangled(SAMPLE.replace(b"460", b"461")):
        try:
            findings = judge_recorded(text, NcclParameters(min_bus_bandwidth_gb_per_s=100))
        except UNMEASURED:
            continue
        # a number cut in two would read as a slow link: such a line has too few columns
        assert Verdict.FAIL not in verdicts_of(findings or [])


@settings(deadline=None, max_examples=200)
@given(st.lists(st.text(alphabet="0123456789.eN/A -float sum", max_size=90), max_size=6))
def test_any_table_is_read_or_refused(lines: list[str]):
    try:
        findings = judge_recorded("\n".join(["# busbw", *lines]).encode(), NcclParameters())
    except UNMEASURED:
        return
    assert findings
