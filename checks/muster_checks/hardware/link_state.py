"""Whether a network port whose link is down is a fault: nodes have ports that nobody uses, and those must take no node.

Proof that a port is in use: its owner says so, it has carried packets since its driver was loaded, or it was up when
this process looked. Only then does a link that stays down fail. That most ports of its kind are up is a hint: WARN.

The time since the boot is read here and not by psutil, which has one /proc for the whole process, where ``--root`` may
name another node's.
"""

from collections.abc import Mapping, Sequence

import msgspec

from muster_checks.base.bounded_read import number, read_text
from muster_checks.base.counter_history import CounterSeries
from muster_checks.base.declaration import NodeView
from muster_checks.base.vocabulary import Verdict

# gpud takes a port for dropped after 4 minutes; a switch that restarts after an update is away for about as long
GRACE_S = 240.0


class PortLink(msgspec.Struct, frozen=True):
    """One port.

    group:  what its equals share
    used:   it has been up since its driver was loaded
    wanted: its owner says that it must be up
    """

    name: str
    group: str
    up: bool
    used: bool
    wanted: bool = False


def uptime_s(node: NodeView) -> float | None:
    """Seconds since the node booted."""
    return number((read_text(node.path("/proc/uptime"), 64) or "").partition(" ")[0])


def describe_down_link(
    link: PortLink, links: Sequence[PortLink], seen_up: CounterSeries | None, now: float, up_for_s: float | None
) -> tuple[Verdict, str] | None:
    """Verdict and reason in words for a link that is down; None where it is up, or nobody is known to use it.

    seen_up:  1 or 0 at each reading, by the clock of ``now``
    up_for_s: how long the node has been up; links take their time at boot
    """
    if link.up:
        return None
    ups = [at for at, value in seen_up.points if value] if seen_up else []
    if link.used or link.wanted or ups:
        down_s = now - ups[-1] if ups else up_for_s
        why = "it must be up" if link.wanted else "it was in use"
        since = f"down for {down_s:.0f} s" if ups and down_s is not None else "down"
        if down_s is not None and down_s < GRACE_S:
            return Verdict.WARN, f"{since} ({why}; a fault after {GRACE_S:.0f} s)"
        return Verdict.FAIL, f"{since} ({why})"
    equals = [other for other in links if other.group == link.group and other is not link]
    others_up = sum(other.up for other in equals)
    if 2 * others_up > len(equals) + 1:
        return Verdict.WARN, f"down since its driver was loaded, while {others_up} of {len(equals)} equal ports are up"
    return None


def find_best_before(seen: Mapping[str, CounterSeries], name: str, now: float) -> float | None:
    """The highest earlier reading of ``name``, if it is above ``now``."""
    series = seen.get(name)
    most = max((value for _, value in series.points), default=now) if series else now
    return most if most > now else None


def find_lone_odd(values: Mapping[str, float], name: str, least: int = 3) -> float | None:
    """What all others have, where ``name`` alone has something else and there are at least ``least`` of them.

    Two that differ may be of another role (storage beside compute); one alone is more likely ill.
    """
    others = {value for other, value in values.items() if other != name}
    if len(values) <= least or len(others) != 1:
        return None
    common = others.pop()
    return common if values[name] != common else None
