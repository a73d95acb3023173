"""How many spares each pool has: a line of text for each, or JSON. Pure."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

import msgspec

from muster_tainter.spares.plan import GroupState

_DOMAINS_SHOWN = 5


class SpareCount(msgspec.Struct, frozen=True, rename="camel"):
    """domain: empty, unless the pool keeps spares per domain. ready: of the ``spares``; wanted: by the policy while no
    node has a fault; out: nodes with a taint for a fault; problem: why the policy's number cannot be kept."""

    pool: str
    domain: str
    ready: int
    spares: int
    wanted: int
    out: int
    problem: str = ""


def spare_counts(groups: Iterable[GroupState]) -> list[SpareCount]:
    return [
        SpareCount(
            pool,
            domain,
            plan.ready,
            plan.spares,
            plan.asked,
            plan.out,
            f"{plan.asked} of {plan.size} nodes would leave none for work: none is kept"
            if plan.asked > plan.wanted
            else "",
        )
        for pool, domain, plan in groups
    ]


def spare_lines(counts: Sequence[SpareCount]) -> Iterator[str]:
    """``spares of pool h100: 1 ready of 2; 1 node has a fault``. counts: by pool."""
    for pool, group in groupby(counts, key=lambda each: each.pool):
        own = list(group)
        ready, wanted, out = (sum(getattr(each, key) for each in own) for key in ("ready", "wanted", "out"))
        parts = [f"spares of pool {pool}: {ready} ready of {wanted}"]
        unready = sum(each.spares for each in own) - ready
        if unready:
            parts.append(f"{unready} not ready")
        if out:
            parts.append(f"{out} node{'' if out == 1 else 's'} tainted for a fault")
        short = [
            f"{each.domain or 'no domain'} {each.ready} of {each.wanted}" for each in own if each.ready < each.wanted
        ]
        if len(own) > 1 and short:
            more = f" and {len(short) - _DOMAINS_SHOWN} more" if len(short) > _DOMAINS_SHOWN else ""
            parts.append(f"short: {', '.join(short[:_DOMAINS_SHOWN])}{more}")
        parts += [f"{each.domain}: {each.problem}".removeprefix(": ") for each in own if each.problem][:1]
        yield "; ".join(parts)
