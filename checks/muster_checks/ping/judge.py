"""Decides who is at fault: a peer that does not answer, or this node, if it reaches (nearly) none of them.

One silent peer proves nothing against this node: the peer may be off, busy, or cut off. If nearly all of a sample from
the whole fleet are silent, this node is what they have in common.
"""

from collections.abc import Sequence
from statistics import median

import msgspec

from muster_checks.base.execution import CannotTell
from muster_checks.base.vocabulary import Finding, Measurement, Verdict, shorten
from muster_checks.ping import PingParameters
from muster_checks.ping.parse import PingReplies

# in doubt 16 peers are asked. If a quarter of the fleet were off, 14 of them would be silent 3 times in ten million
# runs; with half of it off, twice in a thousand. With 6 of 8, a healthy node would be accused in 4 and 145 of a
# thousand runs.
NEARLY_ALL = 7 / 8
LEAST = 3  # two silent peers may both be off


class PingPeer(msgspec.Struct, frozen=True):
    """One peer of the sample. ``answers`` is None if it could not be measured; ``trouble`` says why."""

    name: str
    address: str
    answers: PingReplies | None = None
    trouble: str = ""


def suspects_itself(peers: Sequence[PingPeer]) -> bool:
    """Half of the measured peers are silent: ask as many others before judging."""
    measured, silent = _measured(peers)
    return len(measured) > 0 and 2 * len(silent) >= len(measured)


def judge(peers: Sequence[PingPeer], limits: PingParameters, *, answered_before: bool) -> list[Finding]:
    """answered_before: some peer has answered this node in an earlier run.

    Raises CannotTell if no peer could be measured.
    """
    measured, silent = _measured(peers)
    if not measured:
        raise CannotTell(peers[0].trouble if peers else "no peer was asked")
    findings = [
        Finding(
            component=f"peer/{peer.name}", verdict=Verdict.UNKNOWN, reason="NotMeasured", message=shorten(peer.trouble)
        )
        for peer in peers
        if peer.answers is None
    ]
    poor = [peer for peer in measured if peer not in silent and _poor(peer, limits)]
    # a problem with (nearly) all peers is this node's, and is reported once
    host_silent = len(measured) >= LEAST and len(silent) >= NEARLY_ALL * len(measured)
    answering = len(measured) - len(silent)
    host_poor = answering >= LEAST and len(poor) >= NEARLY_ALL * answering
    for peer in measured:
        if (peer in silent and not host_silent) or (peer in poor and not host_poor):
            findings.append(_judge_peer(peer, limits, silent=peer in silent, alone=answering > 0))
        elif peer not in silent and peer not in poor:
            findings.append(
                Finding(
                    component=f"peer/{peer.name}",
                    verdict=Verdict.PASS,
                    reason="Answers",
                    message=f"{peer.address}: {_figures(peer)}",
                    measurements=_measurements(peer, limits),
                )
            )
    return [_host(measured, silent, poor if host_poor else [], limits, answered_before), *findings]


def _host(
    measured: Sequence[PingPeer],
    silent: Sequence[PingPeer],
    poor: Sequence[PingPeer],
    limits: PingParameters,
    before: bool,
) -> Finding:
    verdict, reason = Verdict.PASS, "PeersAnswer"
    message = f"{len(measured) - len(silent)} of {len(measured)} sampled peers answer"
    if len(measured) >= LEAST and len(silent) >= NEARLY_ALL * len(measured):
        reason, who = "PeersSilent", f"{len(silent)} of {len(measured)} sampled peers do not answer"
        if len(silent) < len(measured) or before:
            verdict = Verdict.FAIL
            message = (
                f"{who}: this node is at fault. Check its link, cable, switch port and routes (ip route get ADDRESS)"
            )
        else:
            verdict = Verdict.WARN
            message = f"{who}, and none has answered before: this node is cut off, or ICMP is filtered between nodes"
    elif len(measured) >= LEAST and 2 * len(silent) >= len(measured):
        verdict, reason = Verdict.WARN, "PeersSilent"
        message = f"{len(silent)} of {len(measured)} sampled peers do not answer: part of the network, or this node"
    elif poor:
        verdict, reason = Verdict.WARN, "NetworkPoor"
        message = (
            f"loss or delay to {len(poor)} of {len(measured)} sampled peers: this node is at fault. {_figures(poor[0])}"
        )
    rtts = [peer.answers.rtt_ms for peer in measured if peer.answers and peer.answers.rtt_ms is not None]
    figures = [
        Measurement("peers", len(measured), ""),
        Measurement("peers_silent", len(silent), "", NEARLY_ALL * len(measured)),
    ]
    if rtts:
        figures.append(Measurement("rtt_median", median(rtts), "ms", limits.max_rtt_ms))
    # no class: a switch that is off for ten minutes recovers, and a taint that only a person removes would remain on
    # a whole rack. A policy rule can request the taint (check: ping, verdict: FAIL)
    return Finding(component="host", verdict=verdict, reason=reason, message=message, measurements=tuple(figures))


def _judge_peer(peer: PingPeer, limits: PingParameters, *, silent: bool, alone: bool) -> Finding:
    where = "check that node" if alone else "no peer answers, so check both ends"
    what = "does not answer" if silent else f"answers badly ({_limits(limits)})"
    return Finding(
        component=f"peer/{peer.name}",
        verdict=Verdict.WARN,
        reason="NoAnswer" if silent else "Poor",
        message=shorten(f"{peer.name} ({peer.address}) {what}: {_figures(peer)}; {where}"),
        measurements=_measurements(peer, limits),
    )


def _measured(peers: Sequence[PingPeer]) -> tuple[list[PingPeer], list[PingPeer]]:
    """(measured peers, those of them that gave no answer at all)."""
    measured = [peer for peer in peers if peer.answers is not None]
    return measured, [peer for peer in measured if peer.answers is not None and peer.answers.received == 0]


def _poor(peer: PingPeer, limits: PingParameters) -> bool:
    return any(
        measurement.threshold is not None and measurement.value > measurement.threshold
        for measurement in _measurements(peer, limits)
    )


def _measurements(peer: PingPeer, limits: PingParameters) -> tuple[Measurement, ...]:
    assert peer.answers is not None  # noqa: S101 - called for measured peers only
    named = (
        ("loss", peer.answers.loss_percent, "%", limits.max_loss_percent),
        ("rtt", peer.answers.rtt_ms, "ms", limits.max_rtt_ms),
        ("mdev", peer.answers.mdev_ms, "ms", limits.max_mdev_ms),
    )
    return tuple(Measurement(name, value, unit, limit) for name, value, unit, limit in named if value is not None)


def _figures(peer: PingPeer) -> str:
    answers = peer.answers
    assert answers is not None  # noqa: S101 - as above
    text = f"{answers.received} of {answers.sent} requests answered"
    if answers.rtt_ms is not None:
        text += f", round trip {answers.rtt_ms:.3g} ms"
    return text + (f" +- {answers.mdev_ms:.3g} ms" if answers.mdev_ms is not None else "")


def _limits(limits: PingParameters) -> str:
    return f"limits: {limits.max_loss_percent:g} % lost, {limits.max_rtt_ms:g} ms, +- {limits.max_mdev_ms:g} ms"
