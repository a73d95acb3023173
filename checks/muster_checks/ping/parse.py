"""Parses the summary that ping prints at its end (``ping -q``).

Three programs of this name are in use. Their lines for loss and round trip:
iputils:   ``4 packets transmitted, 3 received, +1 duplicates, 25% packet loss, time 613ms`` and
           ``rtt min/avg/max/mdev = 0.032/0.166/1.255/0.363 ms, pipe 2``
busybox:   ``4 packets transmitted, 3 packets received, 25% packet loss`` and
           ``round-trip min/avg/max = 0.044/0.059/0.080 ms``
inetutils: as busybox, with ``min/avg/max/stddev``
Sources: iputils ping/ping_common.c (finish), busybox networking/ping.c (print_stats_and_exit), and runs of all three.
"""

import re

import msgspec

from muster_checks.base.bounded_read import Unreadable

PEERS_LIMIT = 256  # maximum number of summaries read from one text
_TEXT_LIMIT_BYTES = 1 << 20
_SUMMARY = re.compile(
    r"^--- (\S{1,255}) ping statistics ---\r?\n"
    r"(\d{1,9}) packets transmitted, (\d{1,9}) (?:packets )?received\b[^\n]{0,200}% packet loss[^\n]{0,200}\n?"
    r"(?:(?:rtt|round-trip) min/avg/max(?:/mdev|/stddev)? = "
    r"[\d.]{1,20}/([\d.]{1,20})/[\d.]{1,20}(?:/([\d.]{1,20}))? ms)?",
    re.M | re.A,
)


class PingReplies(msgspec.Struct, frozen=True):
    """The answers of one peer: requests sent and answered, mean round trip and its deviation in ms (None if nothing
    came back, or if the program does not print it)."""

    sent: int
    received: int
    rtt_ms: float | None = None
    mdev_ms: float | None = None

    @property
    def loss_percent(self) -> float:
        return 100.0 * (self.sent - self.received) / self.sent


def parse_summaries(text: bytes) -> list[tuple[str, PingReplies]]:
    """(address, answers) of each summary in ``text``. Raises Unreadable if there is none, or an inconsistent one.

    With a deadline, ping continues after ``count`` requests until as many answers arrive, so ``sent`` may be larger.
    """
    found = []
    for match in _SUMMARY.finditer(text[-_TEXT_LIMIT_BYTES:].decode("utf-8", "replace")):
        address, sent, received = match[1], int(match[2]), int(match[3])
        if not 0 < sent >= received:
            raise Unreadable(
                f"ping {address}: {received} of {sent} answered: expected at least 1 sent and no more received"
            )
        found.append((address, PingReplies(sent, received, _float(match[4]), _float(match[5]))))
        if len(found) == PEERS_LIMIT:
            break
    if not found:
        raise Unreadable("no summary of ping: expected '… packets transmitted, … received, …% packet loss'")
    return found


def _float(text: str | None) -> float | None:
    try:
        return float(text) if text else None
    except ValueError:
        return None
