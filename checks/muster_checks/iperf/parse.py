"""Parses an iperf3 client's report (``-J``).

``end`` has a sum for sent and one for received data; with ``--bidir`` there are two more, ending in ``_bidir_reverse``,
for what the server sent. UDP reports of releases before 3.12 have only ``sum``: the sent data and the lost share. A
failed test has ``error`` (older releases prefix it with "error - ") and often half an ``end``; the exit code may still
be 0. Sources: src/iperf_api.c of esnet/iperf, and runs of 3.12.
"""

import re
from collections.abc import Mapping

import msgspec

from muster_checks.base.bounded_read import Unreadable, integer, json_document, number
from muster_checks.base.execution import CannotTell

# from 3.16 on each stream has its own thread; before, one thread serves all streams
_THREADS_SINCE = (3, 16)
_BUSY_PERCENT = 90.0  # of what its threads can use
# data that the sender's kernel can buffer with no byte arriving: if more was sent, the receiver's count is missing
_BUFFERED_BYTES = 64 << 20


class Flow(msgspec.Struct, frozen=True):
    """The transfer in one direction.

    to_server:   the client is the sender
    gbit_per_s:  received payload, in 10^9 bits a second
    retransmits_per_gb:  retransmitted TCP segments per 10^9 bytes; None for UDP, and if the kernel does not count them
    lost_percent, jitter_ms:  for UDP
    """

    to_server: bool
    gbit_per_s: float
    retransmits_per_gb: float | None = None
    lost_percent: float | None = None
    jitter_ms: float | None = None


class IperfReport(msgspec.Struct, frozen=True):
    """One test.

    flows:      one, or two with ``--bidir``
    limited:    a target rate was set (always so for UDP), so the bandwidth says nothing about the link
    cpu_bound:  one end used all its CPU time: the network may be faster
    """

    flows: tuple[Flow, ...]
    server: str
    protocol: str
    limited: bool
    cpu_bound: bool


def read_report(text: bytes) -> IperfReport:
    """Raises Unreadable if it is not a complete report, CannotTell with iperf3's message if the test failed."""
    document = json_document(text)
    if not isinstance(document, dict) or not {"start", "end"} <= document.keys():
        raise Unreadable("not a report of iperf3 -J: expected an object with start and end")
    if "error" in document:
        error = str(document["error"]).removeprefix("error - ")
        raise CannotTell(f"iperf3: {error}", "ServerBusy" if "busy" in error else "NotMeasured")
    start, end = _object(document, "start"), _object(document, "end")
    test = _object(start, "test_start")
    protocol = str(test.get("protocol", "TCP")).upper()
    streams = integer(test.get("num_streams")) or 1
    flow = _udp if protocol == "UDP" else _tcp
    flows = [flow(end, "", not integer(test.get("reverse")), streams)]
    if any(str(name).endswith("_bidir_reverse") for name in end):
        flows.append(flow(end, "_bidir_reverse", False, streams))
    return IperfReport(
        flows=tuple(flows),
        server=str(_object(start, "connecting_to").get("host", ""))[:255],
        protocol=protocol,
        limited=protocol == "UDP" or bool(number(test.get("target_bitrate"))),
        cpu_bound=_cpu_bound(start, end, streams),
    )


def _tcp(end: Mapping[str, object], ending: str, to_server: bool, streams: int) -> Flow:
    sent, received = _object(end, f"sum_sent{ending}"), _object(end, f"sum_received{ending}")
    rate, sent_bytes = _number(received, "bits_per_second"), _number(sent, "bytes")
    if rate == 0 and sent_bytes > streams * _BUFFERED_BYTES:
        raise Unreadable(f"{sent_bytes / 1e9:.1f} GB sent and none received: the receiver's count is missing")
    retransmits = number(sent.get("retransmits"))
    return Flow(
        to_server=to_server,
        gbit_per_s=rate / 1e9,
        retransmits_per_gb=retransmits * 1e9 / sent_bytes if retransmits is not None and sent_bytes else None,
    )


def _udp(end: Mapping[str, object], ending: str, to_server: bool, _streams: int) -> Flow:
    total = _object(end, f"sum{ending}")
    lost = number(total.get("lost_percent"))
    received = end.get(f"sum_received{ending}")
    if isinstance(received, dict):
        rate = _number(received, "bits_per_second")
    elif lost is not None and 0 <= lost <= 100:
        rate = _number(total, "bits_per_second") * (1 - lost / 100)
    else:
        raise Unreadable(f"end.sum{ending}.lost_percent: {total.get('lost_percent')!r}: expected 0 to 100")
    return Flow(to_server, rate / 1e9, lost_percent=lost, jitter_ms=number(total.get("jitter_ms")))


def _cpu_bound(start: Mapping[str, object], end: Mapping[str, object], streams: int) -> bool:
    use = end.get("cpu_utilization_percent")
    if not isinstance(use, dict):
        return False
    version = re.search(r"(\d{1,4})\.(\d{1,4})", str(start.get("version", ""))[:64], re.A)
    threaded = version is not None and (int(version[1]), int(version[2])) >= _THREADS_SINCE
    limit = _BUSY_PERCENT * (streams if threaded else 1)
    return any((number(use.get(side)) or 0.0) >= limit for side in ("host_total", "remote_total"))


def _object(parent: Mapping[str, object], name: str) -> dict[str, object]:
    value = parent.get(name)
    if not isinstance(value, dict):
        raise Unreadable(f"{name}: expected an object of iperf3's report, found {str(value)[:40]!r}")
    return value


def _number(parent: Mapping[str, object], name: str) -> float:
    value = number(parent.get(name))
    if value is None or value < 0:
        raise Unreadable(f"{name}: {str(parent.get(name))[:40]!r}: expected a number from 0")
    return value
