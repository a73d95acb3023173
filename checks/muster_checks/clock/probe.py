"""Reads the clock's state from the kernel and, if it is installed and answers, from chronyd."""

from collections.abc import Callable

from muster_checks.base.bounded_read import Unreadable, read_text
from muster_checks.base.declaration import NodeView
from muster_checks.base.vocabulary import Finding
from muster_checks.clock import ClockParameters
from muster_checks.clock.chrony import COMMAND, Tracking, parse_tracking
from muster_checks.clock.judge import judge
from muster_checks.clock.kernel import KernelClock, read_kernel_clock

SOURCE = "/sys/devices/system/clocksource/clocksource0/current_clocksource"


async def probe(
    node: NodeView, parameters: ClockParameters, kernel: Callable[[], KernelClock] = read_kernel_clock
) -> list[Finding]:
    """``kernel``: the system call, as a parameter because files cannot replace it in tests. Raises CannotTell."""
    output = await node.commands.run(COMMAND, timeout_s=parameters.timeout_s)
    # if chronyc does not answer (another time service, a separate network namespace), only the kernel's state is judged
    tracking = _parse_if_tracking(output.stdout) if output.ok else None
    try:
        kernel_clock = kernel()
    except (OSError, AttributeError):  # AttributeError: a C library without the call
        kernel_clock = None
    return judge(kernel_clock, tracking, read_text(node.path(SOURCE), 64) or None, parameters)


def judge_recorded(text: bytes, parameters: ClockParameters) -> list[Finding] | None:
    """The line of `chronyc -c tracking`."""
    if len(text) > 1024 or (tracking := _parse_if_tracking(text)) is None:
        return None
    return judge(None, tracking, None, parameters)


def _parse_if_tracking(text: bytes) -> Tracking | None:
    try:
        return parse_tracking(text)
    except Unreadable:
        return None
