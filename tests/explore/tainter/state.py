"""What a scope of the tainter's world allows, and the part of its state that is outside of all processes."""

from dataclasses import dataclass
from typing import Any, NamedTuple

POLICY = """
pools:
  - {name: all, selector: {}, budget: {tainted: BUDGET}}
rules:
  - {name: hardware, match: {verdict: FAIL}, action: taint, closeOn: [driver, boot], holdDown: 0s}
"""


# a fault that ends before it is confirmed is closed by its absence
WAITS = POLICY.replace("closeOn", "for: 60s, closeOn")


@dataclass(frozen=True)
class Scope:
    """How often each thing may happen. budget: nodes that may be tainted. failing: nodes with a fault at the start.
    other: nodes that have another fault all the time, on another check

    fires: a new fault, on any node; reboots: one after a reboot, in its first report; drivers: the driver logs that a
    fault is over; clears: a person clears a node
    edits: (kind, node), see :data:`tests.explore.tainter.objects.EDITS`; handovers: leadership changes
    clocks: steps of all clocks, in seconds; lose, gone, close, crash, old: see :mod:`tests.explore.cluster_world`

    late: the server may execute a write of a former leader after the election of the next one, as if the former one had
    been stopped between its last check of the lease and the write
    """

    nodes: tuple[str, ...] = ("n1", "n2")
    leaders: int = 2
    budget: int = 2
    failing: tuple[str, ...] = ()
    other: tuple[str, ...] = ()
    fires: int = 0
    reboots: int = 0
    drivers: int = 0
    clears: int = 0
    edits: tuple[tuple[str, str], ...] = ()
    handovers: int = 0
    clocks: tuple[float, ...] = ()
    lose: int = 0
    gone: int = 0
    close: int = 0
    crash: int = 0
    old: int = 0
    late: bool = False
    policy: str = POLICY


class Truth(NamedTuple):
    """What has happened to a node. number: of its last occurrence. wanted: it fired and nothing has closed it since.

    cleared: a person has cleared it since it fired last; other: another check's fault is there all the time
    foreign: keys of the taints of others, as those who set them left them
    """

    number: int = 0
    wanted: bool = False
    cleared: bool = False
    other: bool = False
    foreign: tuple[str, ...] = ()


class Outside(NamedTuple):
    """What is left of the scope, and the truth. leader: who may write; -1: nobody. clock: of all leaders, wall and
    monotonic. tick: the number of events so far, which give them their times. own: of a subclass
    """

    fires: int
    reboots: int
    drivers: int
    clears: int
    edits: tuple[tuple[str, str], ...]
    handovers: int
    clocks: tuple[float, ...]
    lose: int
    gone: int
    close: int
    crash: int
    old: int
    leader: int
    clock: tuple[float, float]
    truth: tuple[tuple[str, Truth], ...]
    tick: int = 0
    own: Any = None
