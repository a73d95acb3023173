"""The check ``clock``: what kernel and chronyd say of the time."""

import ctypes
import errno
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.checks.bad_input import TEXTS, UNMEASURED, mangled

from muster_checks.base.commands import Output
from muster_checks.base.execution import CannotTell, run_probe, run_recorded
from muster_checks.base.vocabulary import FaultClass, Finding, Verdict
from muster_checks.clock import CLOCK, ClockParameters
from muster_checks.clock.chrony import Tracking, parse_tracking
from muster_checks.clock.judge import judge
from muster_checks.clock.kernel import KernelClock, parse_timex, read_kernel_clock
from muster_checks.clock.probe import SOURCE, probe
from muster_checks.testing.recorded import failed, hung, lay_out, node

SAMPLES = Path(__file__).parent / "samples"
SYNCHRONISED = (SAMPLES / "synchronised.csv").read_bytes()
NO_SOURCE = (SAMPLES / "no_source.csv").read_bytes()
OWN_CLOCK = (SAMPLES / "own_clock.csv").read_bytes()
COMMAND = "chronyc -n -c tracking"
RIGHT = KernelClock(True, 0.0, 0.01)
FREE = KernelClock(False, 0.0, 16.0)


def refused() -> KernelClock:
    raise OSError(1, "adjtimex: EPERM")


async def ask(
    root: Path, answers: Mapping[str, Output | bytes], kernel: KernelClock | None = RIGHT, **parameters: Any
) -> list[Finding]:
    return await probe(
        node(root, answers), ClockParameters(**parameters), refused if kernel is None else lambda: kernel
    )


def reasons(findings: list[Finding]) -> dict[str, Verdict]:
    return {finding.reason: finding.verdict for finding in findings}


async def test_a_synchronised_clock_passes_with_its_offset(tmp_path: Path) -> None:
    [finding] = await ask(tmp_path, {COMMAND: SYNCHRONISED}, FREE)
    assert finding.verdict is Verdict.PASS
    values = {measurement.name: measurement.value for measurement in finding.measurements}
    assert values == {"offset": -1.472e-06, "max_error": pytest.approx(8.128e-06), "stratum": 4}


async def test_the_kernels_word_is_enough_without_chrony(tmp_path: Path) -> None:
    [finding] = await ask(tmp_path, {}, KernelClock(True, 0.002, 0.1))
    assert finding.verdict is Verdict.PASS
    assert [measurement.value for measurement in finding.measurements] == [0.002, 0.1]


@pytest.mark.parametrize("said", [NO_SOURCE, OWN_CLOCK])
async def test_a_clock_that_nobody_keeps_warns(tmp_path: Path, said: bytes) -> None:
    assert reasons(await ask(tmp_path, {COMMAND: said}, FREE)) == {"ClockNotSynchronised": Verdict.WARN}
    assert reasons(await ask(tmp_path, {COMMAND: said}, None)) == {"ClockNotSynchronised": Verdict.WARN}
    assert reasons(await ask(tmp_path, {}, FREE)) == {"ClockNotSynchronised": Verdict.WARN}


async def test_another_service_may_keep_the_clock_while_chronyd_idles(tmp_path: Path) -> None:
    assert reasons(await ask(tmp_path, {COMMAND: NO_SOURCE}, RIGHT)) == {"Ok": Verdict.PASS}


@pytest.mark.parametrize(
    "answer",
    [
        failed(COMMAND, 1, stdout=b"506 Cannot talk to daemon\n"),
        failed(COMMAND, 127),
        failed(COMMAND, -9, stdout=SYNCHRONISED),
        hung(COMMAND),
        *TEXTS,
    ],
)
async def test_without_an_answer_of_chronyd_the_kernel_decides(tmp_path: Path, answer: Output | bytes) -> None:
    assert reasons(await ask(tmp_path, {COMMAND: answer}, RIGHT)) == {"Ok": Verdict.PASS}
    assert reasons(await ask(tmp_path, {COMMAND: answer}, FREE)) == {"ClockNotSynchronised": Verdict.WARN}
    with pytest.raises(CannotTell):
        await ask(tmp_path, {COMMAND: answer}, None)


@pytest.mark.parametrize(
    ("offset_s", "reason", "verdict", "asks"),
    [
        (0.05, "Ok", Verdict.PASS, FaultClass.NONE),
        (-0.051, "ClockOffset", Verdict.WARN, FaultClass.NONE),
        (60.0, "ClockOffset", Verdict.WARN, FaultClass.NONE),
        (-61.0, "ClockWrong", Verdict.FAIL, FaultClass.CONTACT),
    ],
)
def test_offset(offset_s: float, reason: str, verdict: Verdict, asks: FaultClass) -> None:
    for kernel, tracking in (
        (KernelClock(True, offset_s, 0.1), None),
        (FREE, Tracking(True, "10.0.0.1", 3, offset_s, 0.1, 0)),
    ):
        [finding] = judge(kernel, tracking, None, ClockParameters())
        assert (finding.reason, finding.verdict, finding.fault_class) == (reason, verdict, asks)


def test_a_leap_second_is_announced() -> None:
    for kernel, tracking in ((KernelClock(True, 0, 0, leap=1), None), (None, Tracking(True, "", 1, 0, 0, -1))):
        assert reasons(judge(kernel, tracking, None, ClockParameters())) == {"LeapSecond": Verdict.WARN}


@pytest.mark.parametrize(
    ("source", "expected", "verdict"),
    [
        ("tsc", "", Verdict.PASS),
        ("kvm-clock", "", Verdict.PASS),
        ("arch_sys_counter", "", Verdict.PASS),
        ("hpet", "", Verdict.WARN),
        ("acpi_pm", "", Verdict.WARN),
        ("hpet", "hpet", Verdict.PASS),
        ("kvm-clock", "tsc", Verdict.WARN),
    ],
)
async def test_clock_source(tmp_path: Path, source: str, expected: str, verdict: Verdict) -> None:
    lay_out(tmp_path, {SOURCE: source})
    [finding] = await ask(tmp_path, {}, clocksource=expected)
    assert finding.verdict is verdict
    assert finding.fault_class is (FaultClass.REBOOT if verdict is Verdict.WARN else FaultClass.NONE)


@pytest.mark.parametrize(
    ("offset", "max_error_us", "status", "expected"),
    [
        (0, 16_000_000, 0x40, KernelClock(False, 0, 16)),  # this project's virtual machine
        (1_500, 200_000, 0x2001, KernelClock(True, 1.5e-6, 0.2)),
        (1_500, 200_000, 0x0001, KernelClock(True, 1.5e-3, 0.2)),
        (0, 20_000, 0x40, KernelClock(True, 0, 0.02)),
        (0, 16_000_000, 0x2010, KernelClock(True, 0, 16, 1)),
        (0, 0, 0x20, KernelClock(True, 0, 0, -1)),
    ],
)
def test_the_kernels_answer(offset: int, max_error_us: int, status: int, expected: KernelClock) -> None:
    assert parse_timex(offset, max_error_us, status) == expected


async def test_the_real_kernel_answers(tmp_path: Path) -> None:
    assert 0 <= read_kernel_clock().max_error_s <= 16
    result = await run_probe(CLOCK, node(tmp_path), ClockParameters())
    assert result.verdict in (Verdict.PASS, Verdict.WARN)


def test_a_forbidden_call_is_told() -> None:
    def forbidden(timex: object) -> int:
        ctypes.set_errno(errno.EPERM)
        return -1

    with pytest.raises(PermissionError, match="adjtimex: EPERM"):
        read_kernel_clock(forbidden)


def test_recorded_tracking_is_judged() -> None:
    result = run_recorded(CLOCK, NO_SOURCE, ClockParameters())
    assert result is not None
    assert (result.verdict, result.reason) == (Verdict.WARN, "ClockNotSynchronised")
    assert result.findings[0].measurements[0].value == 1.5


@pytest.mark.parametrize("text", [*TEXTS, b"x" * 5000])
def test_text_of_another_kind_is_left_to_others(text: bytes) -> None:
    assert run_recorded(CLOCK, text, ClockParameters()) is None


def test_a_number_that_is_none_is_no_answer() -> None:
    for place in (2, 4, 10, 11):
        fields = SYNCHRONISED.split(b",")
        fields[place] = b"nan"
        assert run_recorded(CLOCK, b",".join(fields), ClockParameters()) is None


@pytest.mark.parametrize("text", [*mangled(SYNCHRONISED)])
def test_a_line_cut_short_is_never_a_failure(text: bytes) -> None:
    result = run_recorded(CLOCK, text, ClockParameters())
    assert result is None or result.verdict is Verdict.PASS


@settings(max_examples=100, deadline=None)
@given(st.binary() | st.lists(st.text(max_size=8), min_size=14, max_size=14).map(lambda t: ",".join(t).encode()))
def test_any_text_is_parsed_or_refused(raw: bytes) -> None:
    try:
        parse_tracking(raw)
    except UNMEASURED:
        return
