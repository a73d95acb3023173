"""The check ``clock``: whether the node's clock is right and synchronised, and reads from a fast clock source."""

from collections.abc import Sequence

from pydantic import Field

from muster_checks.base.declaration import Check, Cost, NodeView, Parameters
from muster_checks.base.vocabulary import Finding


class ClockParameters(Parameters):
    # the alert NodeClockSkewDetected of the Prometheus node exporter's mixin
    max_offset_s: float = Field(default=0.05, gt=0, description="clock error above which it warns, s")
    # go-jose's DefaultLeeway, which Kubernetes applies to the times in a service account's token
    fail_offset_s: float = Field(default=60.0, gt=0, description="clock error above which it fails, s")
    clocksource: str = Field(default="", max_length=64, description="clock source that must be in use, e.g. tsc")
    timeout_s: float = Field(default=5.0, gt=0, le=30, description="seconds for chronyc to answer")


async def _probe(node: NodeView, parameters: ClockParameters) -> Sequence[Finding]:
    from muster_checks.clock.probe import probe

    return await probe(node, parameters)


def _recorded(text: bytes, parameters: ClockParameters) -> Sequence[Finding] | None:
    from muster_checks.clock.probe import judge_recorded

    return judge_recorded(text, parameters)


CLOCK = Check(
    name="clock",
    description="system clock: synchronisation, offset, leap seconds, and the clock source",
    cost=Cost.LIGHT,
    parameters=ClockParameters,
    timeout_s=15.0,
    period_s=60.0,
    devices=("host",),
    probe=_probe,
    recorded=_recorded,
    reads="adjtimex(2), /sys/devices/system/clocksource, chronyc (package chrony; only if it is installed)",
    ran_on=(
        "the real system call and clock source of a virtual machine (kernel 6.18), unsynchronised; chronyc 4.3 against "
        "real daemons: synchronised, without sources, with its own local reference"
    ),
    examples=("check=clock", "check=clock&max_offset_s=0.001&clocksource=tsc"),
)
