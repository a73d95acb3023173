"""The series of one job in an answer of Prometheus: when each rank had completed how many steps, in how many seconds.

    {"metric": {"__name__": "muster_step_seconds_sum", "rank": "3", …}, "values": [[1700000000, "12.5"], …]}

Everything in it is the job's word, except for what Prometheus
sets itself.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from muster_tainter.sources.prometheus.answer import (
    MatrixSeries,
    UnusableAnswer,
    decode_matrix_series,
    decode_result,
)

RANK_LIMIT = 1 << 31
NAME_LIMIT = 253  # characters of a pod's name, and of what is shown of a stage or a GPU

_NAME = "__name__"


class UnusableSeries(Exception):
    """kind: a word for the metric ``muster_tainter_step_time_jobs``"""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class SeriesLabels(msgspec.Struct, frozen=True):
    """The names of labels and of the counter of work, as in the policy."""

    rank: str
    stage: str
    pod: str
    gpu: str
    work: str


@dataclass(frozen=True)
class RankSeries:
    """times: rising, in seconds since the epoch, one for each rise of ``counts``, completed steps; sums: their seconds.

    At least one of each. seen: time of the last reading. stage, pod, gpu: empty if no label says. work: of these steps,
    in the job's own unit; empty if it does not say
    """

    rank: int
    stage: str
    pod: str
    gpu: str
    times: Sequence[float]
    counts: Sequence[float]
    sums: Sequence[float]
    seen: float
    work: Sequence[float] = ()


def decode_ranks(body: bytes | bytearray, labels: SeriesLabels) -> tuple[list[RankSeries], int]:
    """(one series for each rank, by rank; number of series that are unusable). Raises UnusableSeries."""
    pairs: dict[tuple[tuple[str, str], ...], dict[str, MatrixSeries]] = {}
    unusable = 0
    for raw in _decoded(body):
        try:
            series = decode_matrix_series(raw)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            unusable += 1
            continue
        name = series.metric.pop(_NAME, "")
        kind = _kind(name, labels)
        if not kind or rank_of(series.metric, labels.rank) is None:
            unusable += 1
            continue
        pairs.setdefault(tuple(sorted(series.metric.items())), {})[kind] = series
    by_rank: dict[int, list[RankSeries]] = {}
    for pair in pairs.values():
        found = _rank_series(pair, labels) if {"sum", "count"} <= pair.keys() else None
        if found is None:
            unusable += len(pair)
        else:
            by_rank.setdefault(found.rank, []).append(found)
    return [_latest(each) for _, each in sorted(by_rank.items())], unusable


def _kind(name: str, labels: SeriesLabels) -> str:
    if name == labels.work:
        return "work"
    return next((kind for kind in ("sum", "count") if name.endswith(f"_{kind}")), "")


def rank_of(metric: Mapping[str, str], label: str) -> int | None:
    text = metric.get(label, "")
    if not text.isascii() or not text.isdigit() or len(text) > 10 or int(text) > RANK_LIMIT:
        return None
    return int(text)


def _decoded(body: bytes | bytearray) -> list[msgspec.Raw]:
    try:
        return decode_result(body, "matrix")
    except UnusableAnswer as error:
        raise UnusableSeries("unusable", str(error)) from error


def _rank_series(pair: Mapping[str, MatrixSeries], labels: SeriesLabels) -> RankSeries | None:
    """Since the counters last began anew. None: there is no usable reading."""
    sums = dict(pair["sum"].values)
    works = dict(pair["work"].values) if "work" in pair else {}
    times, counts, totals, work = list[float](), list[float](), list[float](), list[float | None]()
    seen = -math.inf
    for at, text in pair["count"].values:
        count, total = _number(text), _number(sums.get(at, ""))
        if not at > seen or count is None or total is None:
            continue
        seen = at
        if counts and (count < counts[-1] or total < totals[-1]):  # the process was started anew
            times, counts, totals, work = [], [], [], []
        if not counts or count > counts[-1]:
            times.append(at)
            counts.append(count)
            totals.append(total)
            work.append(_number(works.get(at, "")))
    if not times:
        return None
    metric = pair["count"].metric
    rank = rank_of(metric, labels.rank)
    assert rank is not None  # noqa: S101 - decode_ranks has looked
    stage, pod, gpu = (metric.get(label, "") for label in (labels.stage, labels.pod, labels.gpu))
    known = [each for each in work if each is not None]
    is_whole = len(known) == len(work) and known == sorted(known)
    pod = pod if len(pod) <= NAME_LIMIT else ""
    amounts = known if is_whole else ()
    return RankSeries(rank, stage[:NAME_LIMIT], pod, gpu[:NAME_LIMIT], times, counts, totals, seen, amounts)


def _number(text: str) -> float | None:
    """A finite number that is not negative."""
    try:
        number = float(text)
    except ValueError:
        return None
    return number if 0 <= number < math.inf else None


def _latest(series: Sequence[RankSeries]) -> RankSeries:
    """Of a rank that was started anew in another pod, the last one. Raises UnusableSeries if two rise at once."""
    ordered = sorted(series, key=lambda each: each.times[-1])
    last = ordered[-1]
    for earlier in ordered[:-1]:
        if earlier.times[-1] > last.times[0]:
            pods = " and ".join(each.pod or "no pod" for each in (earlier, last))
            raise UnusableSeries(
                "ambiguous",
                f"rank {last.rank} has two series at once ({pods}); expected one job of this name in its namespace, "
                "and one series of each rank",
            )
    return last
