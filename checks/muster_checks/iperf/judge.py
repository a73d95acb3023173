"""Finds the slow node after many pairs of nodes have been measured.

One slow pair does not show which of its two nodes is slow. blame.py attributes it to a NIC if other pairs show that;
otherwise both nodes get a warning about the pair.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import median

import msgspec

from muster_checks.base.vocabulary import FaultClass, Finding, Measurement, Verdict, severity, shorten
from muster_checks.iperf import IperfParameters
from muster_checks.iperf.blame import Culprit, find_culprits
from muster_checks.iperf.pair import NicPair, NicPlace, NicSide
from muster_checks.iperf.parse import IperfReport

LEAST_ALIKE = 4  # pairs with the same link rate needed for a median that such a pair should reach

Least = Mapping[NicPair, float | None]
_Pages = dict[str, dict[tuple[str, str], Finding]]


class _FaultKind(msgspec.Struct, frozen=True):
    """Slow or lossy: the verdict for a NIC, and the reasons used for a NIC and for a pair."""

    verdict: Verdict
    fault_class: FaultClass
    reason: str
    pair_reason: str


# a cable, an optic, a port: a person has to look at it
_SLOW = _FaultKind(Verdict.FAIL, FaultClass.CONTACT, "SlowNetwork", "SlowPair")
_LOSSY = _FaultKind(Verdict.WARN, FaultClass.NONE, "Retransmits", "PairRetransmits")


def read_pairs(report: IperfReport, client: NicSide, server: NicSide) -> list[NicPair]:
    """The pairs of a report: one, or two for a bidirectional test."""
    return [
        NicPair(
            sender=client if flow.to_server else server,
            receiver=server if flow.to_server else client,
            gbit_per_s=flow.gbit_per_s,
            retransmits_per_gb=flow.retransmits_per_gb,
            limited=report.limited,
            cpu_bound=report.cpu_bound,
        )
        for flow in report.flows
    ]


def judge(pairs: Sequence[NicPair], limits: IperfParameters) -> dict[str, list[Finding]]:
    """The findings of each node that took part, by node name."""
    least = _least(pairs, limits)
    slow, unclear = _slow_and_unclear(pairs, least)
    clear = [pair for pair in pairs if not pair.trouble and pair not in unclear]
    enough = [pair for pair in clear if pair not in slow]
    lossy = {pair for pair in enough if (pair.retransmits_per_gb or 0) > limits.max_retransmits_per_gb}
    pages: _Pages = defaultdict(dict)
    for pair in pairs:
        if pair.trouble:
            _add(pages, pair.sender, _unknown(pair, "NotMeasured", pair.trouble))
        elif pair in unclear:
            rate = f"{pair.gbit_per_s:.3g} Gbit/s, limited by the CPU: the network may be faster"
            _add(pages, pair.sender, _unknown(pair, "CpuBound", f"{rate} (from 3.16 on iperf3 uses several cores)"))
    to_blame = {
        *_lay_blame(pages, clear, slow, _SLOW, least, limits),
        *_lay_blame(pages, enough, lossy, _LOSSY, least, limits),
    }
    good: dict[NicPlace, list[NicPair]] = defaultdict(list)
    for pair in enough:
        for place in {pair.sender.place, pair.receiver.place} - to_blame:
            good[place].append(pair)
    for (node, nic), theirs in good.items():
        _add(pages, NicSide(node), _sound(nic, theirs, least, limits))
    return {node: sorted(page.values(), key=lambda each: -severity(each.verdict)) for node, page in pages.items()}


def find_slow_pairs(pairs: Sequence[NicPair], limits: IperfParameters) -> set[NicPair]:
    """The slow ones of ``pairs``, regardless of whose fault it is."""
    return _slow_and_unclear(pairs, _least(pairs, limits))[0]


def _slow_and_unclear(pairs: Sequence[NicPair], least: Least) -> tuple[set[NicPair], set[NicPair]]:
    below = {pair for pair in pairs if not pair.trouble and _is_below(pair, least)}
    # if the CPU was the limit, the network may be faster, unless nothing at all arrived
    unclear = {pair for pair in below if pair.cpu_bound and pair.gbit_per_s > 0}
    return below - unclear, unclear


def _least(pairs: Sequence[NicPair], limits: IperfParameters) -> dict[NicPair, float | None]:
    """For each pair the bandwidth below which it is slow, in Gbit/s; None if there is nothing to compare with."""
    alike: dict[float | None, list[float]] = defaultdict(list)
    for pair in pairs:
        if not (pair.trouble or pair.limited or pair.cpu_bound):
            alike[pair.link_gbit_per_s].append(pair.gbit_per_s)
    usual = {link: median(rates) for link, rates in alike.items() if len(rates) >= LEAST_ALIKE}
    least: dict[NicPair, float | None] = {}
    for pair in pairs:
        link = pair.link_gbit_per_s
        bounds = [
            limits.min_share_of_link * link if link is not None else None,
            limits.min_share_of_peers * usual[link] if link in usual else None,
        ]
        known = [bound for bound in bounds if bound is not None]
        least[pair] = None if pair.limited else max(known, default=None)
    return least


def _is_below(pair: NicPair, least: Least) -> bool:
    return pair.gbit_per_s == 0 or pair.gbit_per_s < (least[pair] or 0)


def _lay_blame(
    pages: _Pages, pairs: Sequence[NicPair], bad: set[NicPair], kind: _FaultKind, least: Least, limits: IperfParameters
) -> set[NicPlace]:
    """Add findings for the ``bad`` ones of ``pairs`` to the pages. Returns the NICs at fault."""
    found = find_culprits(pairs, bad)
    for culprit in found:
        _add(pages, NicSide(culprit.node), _blame(culprit, bad, kind, least, limits))
    explained = {pair for culprit in found for pair in culprit.pairs}
    for pair in pairs:
        if pair not in bad or pair in explained:
            continue
        for side, other in ((pair.sender, pair.receiver), (pair.receiver, pair.sender)):
            _add(pages, side, _suspicion(pair, other, kind, least, limits))
    return {(culprit.node, nic) for culprit in found for nic in culprit.nics}


def _blame(culprit: Culprit, bad: set[NicPair], kind: _FaultKind, least: Least, limits: IperfParameters) -> Finding:
    guilty = [pair for pair in culprit.pairs if pair in bad]
    name = " ".join([culprit.node, *culprit.nics]).strip()
    text = f"{name}: {_what(guilty, least)} when it {culprit.direction or 'sends or receives'}"
    text += f", in {len(guilty)} of {len(culprit.pairs)} pairs; its peers are fine in pairs without it"
    fine = {side.node for pair in culprit.pairs if pair not in bad for side in (pair.sender, pair.receiver)}
    if with_whom := sorted(fine - {culprit.node}):
        text += f" (fine with {', '.join(with_whom[:3])}: do they share a switch?)"
    return Finding(
        component=_component(culprit.nics[0] if len(culprit.nics) == 1 else ""),
        verdict=kind.verdict,
        reason=kind.reason,
        fault_class=kind.fault_class,
        message=shorten(f"{text}. Check NIC, cable and switch port"),
        measurements=_figures(guilty, least, limits),
    )


def _suspicion(pair: NicPair, other: NicSide, kind: _FaultKind, least: Least, limits: IperfParameters) -> Finding:
    way = f"{pair.sender.node} to {pair.receiver.node}"
    return Finding(
        component=f"peer/{other.node}",
        verdict=Verdict.WARN,
        reason=kind.pair_reason,
        message=shorten(f"{way}: {_what([pair], least)}; measure pairs with other nodes to see which of the two it is"),
        measurements=_figures([pair], least, limits),
    )


def _what(pairs: Sequence[NicPair], least: Least) -> str:
    worst = min(pairs, key=lambda pair: pair.gbit_per_s)
    bound = least[worst]
    if worst.gbit_per_s == 0:
        return "connected, but no data arrived (does a link on the path have a smaller MTU than both ends?)"
    if bound is not None and _is_below(worst, least):
        return f"slow ({worst.gbit_per_s:.3g} Gbit/s, expected {bound:.3g})"
    return f"loses packets ({max(pair.retransmits_per_gb or 0 for pair in pairs):.0f} TCP retransmits per GB)"


def _unknown(pair: NicPair, reason: str, text: str) -> Finding:
    component = f"peer/{pair.receiver.node}"
    return Finding(component=component, verdict=Verdict.UNKNOWN, reason=reason, message=shorten(text))


def _sound(nic: str, pairs: Sequence[NicPair], least: Least, limits: IperfParameters) -> Finding:
    figures = _figures(pairs, least, limits)
    return Finding(
        component=_component(nic),
        verdict=Verdict.PASS,
        reason="Bandwidth",
        message=f"{figures[0].value:.3g} Gbit/s" + (f", median of {len(pairs)} pairs" if len(pairs) > 1 else ""),
        measurements=figures,
    )


def _figures(pairs: Sequence[NicPair], least: Least, limits: IperfParameters) -> tuple[Measurement, ...]:
    """Medians over ``pairs``."""
    bounds = [bound for pair in pairs if (bound := least[pair]) is not None]
    rate = median(pair.gbit_per_s for pair in pairs)
    figures = [Measurement("bandwidth", rate, "Gbit/s", median(bounds) if bounds else None)]
    retransmits = [pair.retransmits_per_gb for pair in pairs if pair.retransmits_per_gb is not None]
    if retransmits:
        figures.append(Measurement("retransmits", median(retransmits), "1/GB", limits.max_retransmits_per_gb))
    return tuple(figures)


def _add(pages: _Pages, side: NicSide, finding: Finding) -> None:
    """If two findings have the same key, keep the worse: a pair may be measured both ways and over several NICs."""
    there = pages[side.node].get(finding.key)
    if there is None or _bandwidth(finding) < _bandwidth(there):
        pages[side.node][finding.key] = finding


def _bandwidth(finding: Finding) -> float:
    return finding.measurements[0].value if finding.measurements else 0.0


def _component(nic: str) -> str:
    return f"nic/{nic}" if nic else "host"
