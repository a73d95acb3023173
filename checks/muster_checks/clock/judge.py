"""Judges the readings of the clock, from the kernel and from chronyd; each may know what the other does not."""

from muster_checks.base.execution import CannotTell
from muster_checks.base.vocabulary import FaultClass, Finding, Measurement, Verdict
from muster_checks.clock import ClockParameters
from muster_checks.clock.chrony import Tracking
from muster_checks.clock.kernel import KernelClock

# Reading the time from these sources takes a microsecond instead of nanoseconds. The kernel falls back to them if the
# TSC is unstable (kernel/time/clocksource.c).
SLOW_SOURCES = frozenset({"hpet", "acpi_pm", "jiffies", "refined-jiffies", "pit"})


def judge(
    kernel: KernelClock | None, tracking: Tracking | None, source: str | None, limits: ClockParameters
) -> list[Finding]:
    """``source``: the clock source in use. Raises CannotTell if there is no reading from the kernel or chronyd."""
    if kernel is None and tracking is None:
        raise CannotTell("the state of the clock cannot be read: neither adjtimex nor chronyc answered")
    bad = [
        *_judge_sync(kernel, tracking, limits),
        *_leap((kernel.leap if kernel else 0) or (tracking.leap if tracking else 0)),
        *_source(source, limits.clocksource),
    ]
    return bad or [_finding(Verdict.PASS, "Ok", "", *_measured(kernel, tracking, limits))]


def _judge_sync(kernel: KernelClock | None, tracking: Tracking | None, limits: ClockParameters) -> list[Finding]:
    best = _best(kernel, tracking)
    if best is None:
        return [
            _finding(
                Verdict.WARN,
                "ClockNotSynchronised",
                "nothing synchronises the clock: check that a time service (chronyd) runs and reaches a server",
                *_measured(kernel, tracking, limits),
            )
        ]
    off = abs(best.offset_s)
    if off <= limits.max_offset_s:
        return []
    fails = off > limits.fail_offset_s
    limit = limits.fail_offset_s if fails else limits.max_offset_s
    return [
        _finding(
            Verdict.FAIL if fails else Verdict.WARN,
            "ClockWrong" if fails else "ClockOffset",
            f"the clock is off by {off:.3g} s (limit {limit:g} s)"
            + (
                ": tokens and certificates will be rejected; step the clock (chronyc makestep)"
                if fails
                else "; it is being corrected"
            ),
            Measurement("offset", best.offset_s, "s", limit),
            asks=FaultClass.CONTACT if fails else FaultClass.NONE,
        )
    ]


def _best(kernel: KernelClock | None, tracking: Tracking | None) -> KernelClock | Tracking | None:
    """The reading with the real offset: while chronyd corrects the clock, the kernel shows an offset of 0."""
    if tracking is not None and tracking.synchronised:
        return tracking
    return kernel if kernel is not None and kernel.synchronised else None


def _leap(leap: int) -> list[Finding]:
    if not leap:
        return []
    what = "inserted" if leap > 0 else "deleted"
    return [_finding(Verdict.WARN, "LeapSecond", f"a leap second will be {what} at the end of this UTC day")]


def _source(source: str | None, expected: str) -> list[Finding]:
    if source is None or source == expected or (not expected and source not in SLOW_SOURCES):
        return []
    wanted = f"expected {expected}" if expected else "slow; the TSC is unstable, or disabled on the kernel command line"
    return [
        _finding(
            Verdict.WARN,
            "ClockSource",
            f"the clock source is {source} ({wanted}): reading the time is slow; check the kernel log, then reboot",
            asks=FaultClass.REBOOT,
        )
    ]


def _measured(
    kernel: KernelClock | None, tracking: Tracking | None, limits: ClockParameters
) -> tuple[Measurement, ...]:
    found = []
    if (best := _best(kernel, tracking)) is not None:
        found.append(Measurement("offset", best.offset_s, "s", limits.max_offset_s))
    if (bounded := tracking or kernel) is not None:
        found.append(Measurement("max_error", bounded.max_error_s, "s"))
    if tracking is not None:
        found.append(Measurement("stratum", tracking.stratum, ""))
    return tuple(found)


def _finding(
    verdict: Verdict, reason: str, message: str, *measured: Measurement, asks: FaultClass = FaultClass.NONE
) -> Finding:
    return Finding(
        component="host", verdict=verdict, reason=reason, message=message, fault_class=asks, measurements=measured
    )
