"""One run of a snapshot check: whatever goes wrong on the way is UNKNOWN or SKIP, never a FAIL."""

import asyncio
import errno
from collections.abc import Sequence
from typing import Any

import pytest

from muster_checks.base.bounded_read import Unreadable
from muster_checks.base.declaration import Check, Cost, NodeView, Parameters, Recorded
from muster_checks.base.execution import CannotTell, NotHere, ToolMissing, run_probe, run_recorded
from muster_checks.base.vocabulary import MESSAGE_LIMIT_BYTES, FaultClass, Finding, Result, Verdict


def _finding(component: str, verdict: Verdict, reason: str = "Ok", message: str = "fine") -> Finding:
    return Finding(component=component, verdict=verdict, reason=reason, message=message)


def _check(
    outcome: Sequence[Finding] | BaseException, recorded: Recorded | None = None, timeout_s: float = 5.0
) -> Check:
    async def probe(_node: NodeView, _parameters: Any) -> Sequence[Finding]:
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    return Check(
        name="tried",
        description="",
        cost=Cost.LIGHT,
        parameters=Parameters,
        timeout_s=timeout_s,
        devices=("gpu",),
        probe=probe,
        recorded=recorded,
    )


async def _run(outcome: Sequence[Finding] | BaseException) -> Result:
    return await run_probe(_check(outcome), NodeView(), Parameters())


async def test_the_worst_finding_gives_the_verdict_and_comes_first() -> None:
    result = await _run(
        [
            _finding("gpu/a", Verdict.PASS),
            _finding("gpu/b", Verdict.FAIL, "Broken", "b is broken"),
            _finding("gpu/c", Verdict.WARN, "Slow"),
        ]
    )
    assert (result.verdict, result.reason, result.message) == (Verdict.FAIL, "Broken", "b is broken")
    assert [finding.component for finding in result.findings] == ["gpu/b", "gpu/c", "gpu/a"]


async def test_sound_devices_pass_without_a_reason() -> None:
    result = await _run([_finding("gpu/a", Verdict.PASS)])
    assert (result.verdict, result.reason, result.message) == (Verdict.PASS, "", "")


async def test_no_finding_at_all_passes() -> None:
    assert (await _run([])).verdict is Verdict.PASS


async def test_what_is_not_known_of_one_device_does_not_hide_a_fault_of_another() -> None:
    result = await _run([_finding("gpu/a", Verdict.UNKNOWN, "NotReadable"), _finding("gpu/b", Verdict.FAIL, "Broken")])
    assert result.reason == "Broken"


@pytest.mark.parametrize(
    ("error", "verdict", "reason", "said"),
    [
        (NotHere("no GPU on the PCI bus"), Verdict.SKIP, "NoDevice", "no GPU on the PCI bus"),
        (CannotTell("dcgmi: exit code 1"), Verdict.UNKNOWN, "NotMeasured", "dcgmi: exit code 1"),
        (
            ToolMissing("dcgmi", "datacenter-gpu-manager-4-core"),
            Verdict.UNKNOWN,
            "ToolMissing",
            "install datacenter-gpu",
        ),
        (Unreadable("line 3: expected a number"), Verdict.UNKNOWN, "Unreadable", "line 3"),
        (ZeroDivisionError("division by zero"), Verdict.UNKNOWN, "ProbeFailed", "ZeroDivisionError: division by zero"),
        (RecursionError(), Verdict.UNKNOWN, "ProbeFailed", "RecursionError"),
        (TimeoutError(), Verdict.UNKNOWN, "Timeout", "5 s"),
        (OSError(errno.ETIMEDOUT, "timed out"), Verdict.UNKNOWN, "ProbeFailed", "timed out"),
    ],
)
async def test_what_stands_in_the_way_is_never_a_fail(
    error: Exception, verdict: Verdict, reason: str, said: str
) -> None:
    result = await _run(error)
    assert (result.verdict, result.reason) == (verdict, reason)
    assert said in result.message
    assert result.findings == ()


async def test_a_probe_that_hangs_is_unknown_after_its_time() -> None:
    async def probe(_node: NodeView, _parameters: Any) -> Sequence[Finding]:
        await asyncio.Event().wait()
        return []  # pragma: no cover - never reached

    check = Check(
        name="tried", description="", cost=Cost.LIGHT, parameters=Parameters, timeout_s=0.05, devices=(), probe=probe
    )
    result = await run_probe(check, NodeView(), Parameters())
    assert (result.verdict, result.reason) == (Verdict.UNKNOWN, "Timeout")


async def test_a_run_that_is_cancelled_makes_no_result() -> None:
    with pytest.raises(asyncio.CancelledError):
        await _run(asyncio.CancelledError())


async def test_when_and_how_long_it_ran_comes_from_the_clocks_given() -> None:
    ticks = iter([10.0, 12.5])
    result = await run_probe(_check([]), NodeView(), Parameters(), wall=lambda: 1e9, clock=lambda: next(ticks))
    assert (result.started, result.duration_s) == (1e9, 2.5)


async def test_a_long_message_is_shortened() -> None:
    result = await _run(CannotTell("x\n" * 1000))
    assert len(result.message.encode()) <= MESSAGE_LIMIT_BYTES
    assert "\n" not in result.message


def test_recorded_output_is_judged_like_a_run() -> None:
    broken = _finding("gpu/a", Verdict.FAIL, "Broken")
    result = run_recorded(_check([], recorded=lambda _text, _parameters: [broken]), b"text", Parameters())
    assert result is not None
    assert (result.verdict, result.reason, result.check) == (Verdict.FAIL, "Broken", "tried")


def test_text_of_another_kind_has_no_result() -> None:
    assert run_recorded(_check([], recorded=lambda _text, _parameters: None), b"text", Parameters()) is None
    assert run_recorded(_check([]), b"text", Parameters()) is None


def test_recorded_output_that_cannot_be_read_is_unknown() -> None:
    def recorded(_text: bytes, _parameters: Any) -> Sequence[Finding]:
        raise Unreadable("cut short")

    result = run_recorded(_check([], recorded=recorded), b"text", Parameters())
    assert result is not None
    assert (result.verdict, result.reason) == (Verdict.UNKNOWN, "Unreadable")


def test_a_check_is_either_a_snapshot_or_a_stream() -> None:
    with pytest.raises(ValueError, match=r"\bprobe\b.*\bstream\b"):
        Check(name="both", description="", cost=Cost.LIGHT, parameters=Parameters, timeout_s=1.0, devices=())


def test_a_finding_is_told_apart_by_component_and_reason() -> None:
    assert _finding("gpu/a", Verdict.FAIL, "Broken").key == ("gpu/a", "Broken")
    assert _finding("gpu/a", Verdict.FAIL).fault_class is FaultClass.NONE
