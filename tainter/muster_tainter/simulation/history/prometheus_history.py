"""Reads the faults of a fleet's past from Prometheus, a window at a time.

All but one of the queries return series only for what is wrong, so a fleet of 10,000 nodes answers with a few hundred
series for a day. An answer that is too large is asked for again in halves. The series are those of docs/metrics.md and,
for Ready and cordoned nodes, of kube-state-metrics (docs/metrics/cluster/node-metrics.md there).
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from muster_tainter.simulation.history.past_faults import FAULTS_LIMIT, PastFault, PastFaults
from muster_tainter.simulation.history.spans import Spans
from muster_tainter.sources.http_client import AnswerTooLarge, SourceError
from muster_tainter.sources.prometheus.answer import UnusableAnswer, decode_matrix_series, decode_result
from muster_tainter.sources.prometheus.client import PrometheusClient

WINDOW_S = 86_400.0  # of one query: 1,440 readings of a series, of the 11,000 that Prometheus allows
WINDOW_LEAST_S = 1_800.0
STEP_S = 60.0
GAP_S = 900.0  # an agent that restarts, or a node that reboots, has no series meanwhile
COVERAGE_STEP_S = 3_600.0
NO_CLASS = "none"  # of a finding that asks for nothing, in muster_agent_fault

FAULTS = "max by (node, check, component, reason, class) (muster_agent_fault{%s} == 1)"
# agents before muster_agent_fault: neither reason nor class
VERDICTS = "max by (node, check, component) (muster_agent_component_verdict{%s} == 1)"
READY = "min by (node) (kube_node_status_condition{%s}) == 0"
CORDONED = "max by (node) (kube_node_spec_unschedulable{%s}) == 1"
AGENTS = "count(count by (node) (muster_agent_info{%s}))"
NODES = "count(count by (node) (kube_node_status_condition{%s}))"

_OF_READY = ('condition="Ready"', 'status="true"')
_OF_FAIL = ('verdict="FAIL"',)
_Key = tuple[str, ...]


class Readings(NamedTuple):
    """times: seconds since the epoch. values: beside them."""

    labels: dict[str, str]
    times: list[float]
    values: list[float]


@dataclass
class Coverage:
    """How much Prometheus remembers. first: of the first reading; 0: it has none. most: the largest number of agents or
    nodes at once. hours, hours_asked: with readings, and all."""

    first: float = 0.0
    most: int = 0
    hours: int = 0
    hours_asked: int = 0

    def read(self, at: float, number: float) -> None:
        self.first = self.first or at
        self.most = max(self.most, int(min(number, 1e9)))
        self.hours += 1


@dataclass
class PrometheusPast:
    """agents, nodes: what Muster's agents and kube-state-metrics have left in Prometheus. malformed: series without the
    labels that they must have."""

    agents: Coverage = field(default_factory=Coverage)
    nodes: Coverage = field(default_factory=Coverage)
    malformed: int = 0


async def read_past(
    client: PrometheusClient, faults: PastFaults, matchers: str = "", progress: Callable[[float], None] = lambda _: None
) -> PrometheusPast:
    """Add to ``faults`` what Prometheus remembers of its time.

    matchers: more PromQL label matchers for Muster's series, such as ``cluster="a"``. progress: called with the time up
    to which everything is read. Raises SourceError.
    """
    reader = _Reader(client, faults, matchers)
    at = faults.begin
    while at < faults.end:
        until = min(at + WINDOW_S, faults.end)
        await reader.read(at, until)
        progress(until)
        at = until
    reader.finish()
    return reader.past


class _Reader:
    def __init__(self, client: PrometheusClient, faults: PastFaults, matchers: str) -> None:
        self._client, self._faults = client, faults
        self.past = PrometheusPast()
        own = (matchers,) if matchers else ()
        self._found = Spans[_Key](STEP_S, GAP_S, self._fault)
        self._failing = Spans[_Key](STEP_S, GAP_S, self._fault)
        self._not_ready = Spans[_Key](STEP_S, GAP_S, self._was_not_ready)
        self._cordoned = Spans[_Key](STEP_S, GAP_S, self._was_cordoned)
        self._cordons: dict[str, list[tuple[float, float]]] = {}
        self._silent: list[tuple[str, float, float]] = []
        self._spans = (
            (_query(FAULTS, *own), ("node", "component", "check", "reason", "class"), self._found),
            (_query(VERDICTS, *_OF_FAIL, *own), ("node", "component", "check"), self._failing),
            (_query(READY, *_OF_READY), ("node",), self._not_ready),
            (_query(CORDONED), ("node",), self._cordoned),
        )
        self._coverages = (
            (_query(AGENTS, *own), self.past.agents),
            (_query(NODES, *_OF_READY), self.past.nodes),
        )

    async def read(self, begin: float, end: float) -> None:
        for query, names, spans in self._spans:
            await self._read_spans(query, names, spans, begin, end)
            spans.read_until(end)
        for query, coverage in self._coverages:
            await self._cover(query, coverage, begin, end)

    async def _read_spans(self, query: str, names: _Key, spans: Spans[_Key], begin: float, end: float) -> None:
        try:
            for series in await self._ask(query, begin, end, STEP_S):
                key = tuple(series.labels.get(name, "") for name in names)
                if not key[0]:
                    self.past.malformed += 1
                    continue
                spans.read(key, series.times)
        except SourceError as error:
            if not _is_too_much(error) or end - begin < 2 * WINDOW_LEAST_S:
                raise
            middle = begin + STEP_S * ((end - begin) / 2 // STEP_S)
            await self._read_spans(query, names, spans, begin, middle)
            await self._read_spans(query, names, spans, middle, end)

    async def _cover(self, query: str, coverage: Coverage, begin: float, end: float) -> None:
        coverage.hours_asked += math.ceil((end - begin) / COVERAGE_STEP_S)
        for series in await self._ask(query, begin, end, COVERAGE_STEP_S):
            for at, number in zip(series.times, series.values, strict=True):
                coverage.read(at, number)

    async def _ask(self, query: str, begin: float, end: float, step_s: float) -> list[Readings]:
        """Readings at begin, begin + step_s … before ``end``. All of the answer is decoded before any of it counts."""
        body = await self._client.ask_range(query, begin, end - 0.001, step_s)
        try:
            return list(decode_matrix(body))
        except SourceError as error:
            raise type(error)(f"{self._client.where.url}: {error}") from error

    def _fault(self, key: _Key, start: float, end: float) -> None:
        node, component, check, *more = key
        reason, fault_class = more or ("", "")
        self._faults.add(PastFault(node, component, check, reason, fault_class, start, end))

    def _was_not_ready(self, key: _Key, start: float, end: float) -> None:
        if len(self._silent) < FAULTS_LIMIT:
            self._silent.append((key[0], start, end))
        else:
            self._faults.left_out["too many"] += 1

    def _was_cordoned(self, key: _Key, start: float, end: float) -> None:
        self._cordons.setdefault(key[0], []).append((start, end))

    def finish(self) -> None:
        """What is still there has no end."""
        end = self._faults.end
        self._found.finish(end, self._fault)
        self._failing.finish(end, self._fault)
        self._not_ready.finish(end, self._was_not_ready)
        self._cordoned.finish(end, self._was_cordoned)
        for node, start, until in self._silent:
            # a person cordons a node before maintenance; a cordon of somebody who found it broken comes later
            if any(first < start <= last for first, last in self._cordons.get(node, ())):
                self._faults.left_out["maintenance"] += 1
            else:
                self._faults.add_not_ready(node, start, until)


def decode_matrix(body: bytes | bytearray) -> Iterator[Readings]:
    """Raises SourceError for an answer that is unusable or incomplete. A series that cannot be decoded is left out."""
    try:
        result = decode_result(body, "matrix")
    except UnusableAnswer as error:
        raise SourceError(str(error)) from error
    for raw in result:
        try:
            series = decode_matrix_series(raw)
            numbers = [(at, float(text)) for at, text in series.values if math.isfinite(at)]
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError):
            continue
        yield Readings(series.metric, [at for at, _ in numbers], [number for _, number in numbers])


def _query(form: str, *matchers: str) -> str:
    return form % ", ".join(matchers)


def _is_too_much(error: SourceError) -> bool:
    """A shorter time may be answered: too many bytes or samples (422), or the query takes too long (503, silence)."""
    text = str(error)
    return isinstance(error, AnswerTooLarge) or any(
        sign in text for sign in (": 422: ", ": 503: ", ": 504: ", "no answer within")
    )
