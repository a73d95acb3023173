"""Parses the JSON output of RAS (NCCL 2.28.7 and later; user guide, section RAS, "JSON Output")."""

import re
from collections import Counter
from collections.abc import Iterable

import msgspec

from muster_checks.ncclras.report import (
    COMMUNICATORS_LIMIT,
    RANKS_LIMIT,
    MalformedReport,
    RasCommunicator,
    RasRank,
    host_of,
)

_HASH = re.compile(r"0x[0-9a-f]{1,16}")
_COUNT_LIMIT = 1 << 63


class _Rank(msgspec.Struct):
    rank: int
    host: str
    pid: int = 0
    cuda_dev: int = -1
    collective_counts: dict[str, int] = {}


class _Answering(msgspec.Struct):
    unresponsive: bool = False
    considered_dead: bool = False


class _Missing(msgspec.Struct):
    rank: int
    host: str = ""
    pid: int = 0
    cuda_dev: int = -1
    status: _Answering = msgspec.field(default_factory=_Answering)


class _Communicator(msgspec.Struct):
    hash: str
    size: int
    ranks: list[_Rank] = []
    missing_ranks: list[_Missing] = []


class _Report(msgspec.Struct):
    nccl_version: str
    communicators: list[_Communicator]


_decoder = msgspec.json.Decoder(_Report)


def parse_json(text: bytes) -> list[RasCommunicator]:
    """Raises MalformedReport."""
    try:
        report = _decoder.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedReport(f"not RAS's JSON: {error}") from None
    ranks = sum(len(each.ranks) + len(each.missing_ranks) for each in report.communicators)
    if len(report.communicators) > COMMUNICATORS_LIMIT or ranks > RANKS_LIMIT:
        raise MalformedReport(f"{len(report.communicators)} communicators with {ranks} ranks: too many")
    return [_communicator(each) for each in report.communicators]


def _communicator(given: _Communicator) -> RasCommunicator:
    if not _HASH.fullmatch(given.hash) or given.size < 1:
        raise MalformedReport(f"communicator {given.hash[:20]!r} of size {given.size}")
    # a process may be reachable and no longer be a member
    silent = [each for each in given.missing_ranks if each.status.unresponsive or each.status.considered_dead]
    progress = sum(min(abs(count), _COUNT_LIMIT) for each in given.ranks for count in each.collective_counts.values())
    return RasCommunicator(
        name=given.hash.removeprefix("0x").zfill(16),
        size=given.size,
        silent=tuple(sorted(map(_rank, silent))),
        behind=tuple(sorted(map(_rank, _behind(given.ranks)))),
        progress=float(progress),
        first_host=host_of(min(given.ranks, key=lambda each: each.rank).host) if given.ranks else "",
    )


def _behind(ranks: Iterable[_Rank]) -> list[_Rank]:
    """Those that have launched fewer operations of one sort than most ranks have."""
    counts = {each.rank: each for each in ranks}
    found: dict[int, _Rank] = {}
    for name in {name for each in counts.values() for name in each.collective_counts}:
        launched = Counter(each.collective_counts.get(name, 0) for each in counts.values())
        most, by = launched.most_common(1)[0]
        if 2 * by > len(counts):
            found |= {each.rank: each for each in counts.values() if each.collective_counts.get(name, 0) < most}
    return list(found.values())


def _rank(given: _Rank | _Missing) -> RasRank:
    return RasRank(rank=given.rank, host=host_of(given.host), gpu=given.cuda_dev, pid=given.pid)
