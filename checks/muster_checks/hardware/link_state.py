"""Decides whether a network port whose link is down is a fault. Nodes have unused ports, which must not fail.

A port is in use if the operator requires it, if it has carried packets since its driver was loaded, or if this process
has seen it up. Only the link of a port in use can fail. If most equal ports are up, an unused port warns.

The uptime is read here and not through psutil, which uses one /proc for the whole process, while ``--root`` may name
another node's.
"""

from collections.abc import Mapping, Sequence

import msgspec

from muster_checks.base.bounded_read import number, read_text
from muster_checks.base.counter_history import CounterSeries
from muster_checks.base.declaration import NodeView
from muster_checks.base.vocabulary import Verdict

# gpud reports a port as dropped after 4 minutes; a switch that restarts after an update takes about as long
GRACE_S = 240.0


class PortLink(msgspec.Struct, frozen=True):
    """One port.

    group:  common property of equal ports
    used:   it has been up since its driver was loaded
    wanted: the operator requires it to be up
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
    """Verdict and explanation for a link that is down; None if it is up, or not known to be in use.

    seen_up:  1 or 0 at each reading, on the clock of ``now``
    up_for_s: the node's uptime, because links need some time after a boot
    """
    if link.up:
        return None
    points = seen_up.points if seen_up else ()
    ups = [at for at, value in points if value]
    if link.used or link.wanted or ups:
        down_s = now - _lost_at([at for at, _ in points], ups[-1], now) if ups else up_for_s
        why = "required" if link.wanted else "it was in use"
        since = f"down for {down_s:.0f} s" if ups and down_s is not None else "down"
        if down_s is not None and down_s < GRACE_S:
            return Verdict.WARN, f"{since} ({why}; FAIL after {GRACE_S:.0f} s)"
        return Verdict.FAIL, f"{since} ({why})"
    equals = [other for other in links if other.group == link.group and other is not link]
    others_up = sum(other.up for other in equals)
    if 2 * others_up > len(equals) + 1:
        return Verdict.WARN, f"down since its driver was loaded, while {others_up} of {len(equals)} equal ports are up"
    return None


def _lost_at(readings: Sequence[float], last_up: float, now: float) -> float:
    """Since when a link is down: since it was last seen up, or only since the next reading if nobody looked between
    them for longer than the agent's period (60 s) explains."""
    next_at = next((at for at in readings if at > last_up), now)
    return last_up if next_at - last_up <= GRACE_S / 2 else next_at


def find_best_before(seen: Mapping[str, CounterSeries], name: str, now: float) -> float | None:
    """The highest earlier reading of ``name``, if it is above ``now``."""
    series = seen.get(name)
    most = max((value for _, value in series.points), default=now) if series else now
    return most if most > now else None


def find_lone_odd(values: Mapping[str, float], name: str, least: int = 3) -> float | None:
    """The common value of all others, if only ``name`` differs and there are at least ``least`` others.

    Two that differ may have another role (storage beside compute); a single one is more likely faulty.
    """
    others = {value for other, value in values.items() if other != name}
    if len(values) <= least or len(others) != 1:
        return None
    common = others.pop()
    return common if values[name] != common else None
