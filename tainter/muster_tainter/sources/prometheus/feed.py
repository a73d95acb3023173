"""Evaluates the policy's PromQL queries while this process leads: one task per query.

No state is stored. A new leader finds its predecessor's findings in the Node's annotation; ``for`` begins anew.
"""

import asyncio
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from muster_checks.base.declaration import AllClear, Sign
from muster_checks.base.vocabulary import shorten
from muster_kube.controller.backoff import Backoff
from muster_tainter.fleet.interface import Fleet, record_of
from muster_tainter.fleet.replica import Replica
from muster_tainter.policy.sections.sources import MetricQuery, PrometheusSource
from muster_tainter.sources.http_client import NS, TIMEOUT_S, SourceError, SourceRefused
from muster_tainter.sources.loki.finding_tracker import FindingTracker
from muster_tainter.sources.occurrences import last_ended
from muster_tainter.sources.prometheus.client import MetricAnswer, MetricSample, PrometheusClient
from muster_tainter.sources.prometheus.metric_watch import MetricWatch, NodesAnswered
from muster_tainter.sources.source_status import BACKOFF, SourceMetrics, SourceStatus

log = logging.getLogger(__name__)

CHECK = "prometheus"
COMPONENT = "host"
# how a fault was closed when its source no longer reported it; after any other end it may still be going on
_ENDED_AT_SOURCE = ("source", "passing")


@dataclass(frozen=True)
class _ByNode:
    """An answer to one query: samples by node, and nodes with series but without a usable value."""

    samples: Mapping[str, Sequence[MetricSample]]
    unknown: frozenset[str]


@dataclass(frozen=True)
class _Answered:
    """Answers to a query and its ``endQuery``."""

    samples: Mapping[str, Sequence[MetricSample]]
    nodes: NodesAnswered


class PrometheusFeed:
    """The state for one leadership. ``follow`` may be called again, with other settings, after it has ended."""

    def __init__(self, fleet: Fleet, replica: Replica, metrics: SourceMetrics, *, backoff: Backoff = BACKOFF) -> None:
        self._fleet = fleet
        self._replica = replica
        self._metrics = metrics
        self._status = SourceStatus(metrics, backoff)
        external = fleet.external_findings
        self._tracker = FindingTracker(CHECK, partial(record_of, fleet), external.add, external.close)
        self._watches: dict[MetricQuery, MetricWatch] = {}
        self._ended: dict[str, dict[str, int]] = {}  # by node and reason, the occurrence that this process ended

    def drop_removed(self, where: PrometheusSource | None) -> None:
        """End the findings of queries that are no longer in the policy: nobody watches them any more."""
        queries = () if where is None else where.queries
        names = {query.name for query in queries}
        self._watches = {query: watch for query, watch in self._watches.items() if query in queries}
        for node in list(self._fleet.nodes):
            reasons = {fault.reason for fault in record_of(self._fleet, node).open if fault.check == CHECK}
            reasons |= {reason for _, reason in self._tracker.nodes.get(node, {})}
            for reason in reasons - names:
                self._end(node, reason, "this query was removed from the policy")

    async def follow(self, where: PrometheusSource) -> None:
        """Runs until cancelled."""
        names = {f"prometheus.queries[{i}]": query for i, query in enumerate(where.queries)}
        failures = 0
        with self._status.followed([*names]):
            while True:
                try:
                    async with PrometheusClient(where, now=self._replica.now) as client, asyncio.TaskGroup() as group:
                        for name, query in names.items():
                            group.create_task(self._evaluate_on(client, name, query, where.every))
                except SourceError as error:  # caFile
                    await self._status.wait(where.url, error, failures)
                    failures += 1

    async def _evaluate_on(self, client: PrometheusClient, name: str, query: MetricQuery, every_s: float) -> None:
        watch = self._watch(query)
        failures = 0
        answered_at: float | None = None  # None: the previous evaluation failed
        while True:
            try:
                answer = await self._ask(client, name, query)
                now = self._replica.clock()
                # a process that was stopped has not watched
                elapsed_s = 0.0 if answered_at is None else min(now - answered_at, every_s + TIMEOUT_S)
                self._look(watch, answer, elapsed_s)
            except Exception as error:
                # other sources taint nodes, too, and must continue
                if not isinstance(error, SourceError):
                    log.exception("%s: evaluation failed", name)
                answered_at = None
                self._metrics.up.labels(name).set(0)
                await self._status.wait(name, error, failures)
                failures += 1
                continue
            failures, answered_at = 0, now
            self._status.answered(name)
            self._metrics.read_to.labels(name).set(client.now_ns() / NS)
            await asyncio.sleep(every_s)

    def _watch(self, query: MetricQuery) -> MetricWatch:
        watch = self._watches.get(query)
        if watch is not None:
            return watch
        watch = self._watches[query] = MetricWatch(query)
        for node in list(self._fleet.nodes):
            key = (COMPONENT, query.name)
            known = key in self._tracker.nodes.get(node, {}) or self._is_open(node, query.name)
            if known or self._was_closed_while_open(node, query.name):
                watch.adopt(node)
        return watch

    def _is_open(self, node: str, reason: str) -> bool:
        open_faults = record_of(self._fleet, node).open
        return any(fault.key == (CHECK, COMPONENT, reason) and not fault.over for fault in open_faults)

    def _was_closed_while_open(self, node: str, reason: str) -> bool:
        """By a person, for example: it opens again only after the query has stopped returning the node."""
        closed = [one for one in record_of(self._fleet, node).closed if one.key == (CHECK, COMPONENT, reason)]
        return bool(closed) and max(closed, key=lambda one: one.occurrence).how not in _ENDED_AT_SOURCE

    async def _ask(self, client: PrometheusClient, name: str, query: MetricQuery) -> _Answered:
        """Raises SourceError; an answer to only one of the two queries counts for nothing."""
        bad = self._by_node(name, query, await client.ask(query.query))
        good = set[str]()
        if query.end_query is not None:
            good = set(self._by_node(f"{name}.endQuery", query, await client.ask(query.end_query)).samples)
        return _Answered(bad.samples, NodesAnswered(bad.samples.keys(), bad.unknown, good))

    def _by_node(self, name: str, query: MetricQuery, answer: MetricAnswer) -> _ByNode:
        """Raises SourceRefused if no series has the label."""
        samples: dict[str, list[MetricSample]] = {}
        unknown, homeless, unlabelled = set[str](), 0, answer.malformed
        for labels, sample in _labelled(answer):
            node = labels.get(query.node_label, "")
            if not node:
                unlabelled += 1
            elif node not in self._fleet.nodes:
                homeless += 1
            elif sample is None:
                unknown.add(node)
            else:
                samples.setdefault(node, []).append(sample)
        for what, count in (
            ("read", answer.series),
            ("malformed", unlabelled + len(answer.unusable)),
            ("homeless", homeless),
        ):
            self._metrics.lines.labels(name.removesuffix(".endQuery"), what).inc(count)
        if answer.series and unlabelled == answer.series:
            found = sorted({name for each, _ in _labelled(answer) for name in each})
            raise SourceRefused(
                f"no series has the label {query.node_label}, which names its node (nodeLabel); found: "
                f"{shorten(', '.join(found)) or 'no labels'}"
            )
        return _ByNode(samples, frozenset(unknown))

    def _look(self, watch: MetricWatch, answer: _Answered, elapsed_s: float) -> None:
        reason = watch.rule.name
        self._tracker.settle(lambda _node, _key: None)
        for node in [*watch.open, *watch.pending]:
            if node not in self._fleet.nodes:
                watch.forget(node)
        for node in [node for node in {*self._tracker.nodes, *self._ended} if node not in self._fleet.nodes]:
            self._tracker.drop(node)
            self._ended.pop(node, None)
        turn = watch.look(answer.nodes, elapsed_s, {node for node in answer.nodes.bad if self._is_ending(node, reason)})
        for node in turn.ended:
            self._end(node, reason, f"{reason}: {_END_WORDS[watch.rule.end_query is None]}")
        adopted = [
            node
            for node in watch.open.keys() & answer.samples.keys()
            if self._is_open(node, reason) and (COMPONENT, reason) not in self._tracker.nodes.get(node, {})
        ]
        for node in (*turn.begun, *adopted):
            self._begin(node, watch.rule, answer.samples[node])

    def _is_ending(self, node: str, reason: str) -> bool:
        """Its last occurrence has ended, but the Node has not been written yet: the next one would get its number."""
        ended = self._ended.get(node, {}).get(reason, 0)
        return ended > 0 and self._is_open(node, reason)

    def _begin(self, node: str, rule: MetricQuery, samples: Sequence[MetricSample]) -> None:
        record = record_of(self._fleet, node)
        number, ended_ms = last_ended((CHECK, COMPONENT, rule.name), record)
        sign = Sign(
            component=COMPONENT,
            reason=rule.name,
            verdict=rule.judged,
            message=_message(rule, samples),
            # later than all earlier ones, in case the clock was set back
            at=max(self._replica.now(), max(number, ended_ms) / 1000 + 1),
            fault_class=rule.fault_class,
        )
        self._tracker.take(node, sign)

    def _end(self, node: str, reason: str, why: str) -> None:
        key = (CHECK, COMPONENT, reason)
        opened = self._tracker.nodes.get(node, {}).get((COMPONENT, reason))
        numbers = [fault.occurrence for fault in record_of(self._fleet, node).open if fault.key == key]
        numbers += [opened.finding.occurrence] if opened else []
        if numbers:
            self._ended.setdefault(node, {})[reason] = max(numbers)
        clear = AllClear(component=COMPONENT, at=self._replica.now(), how="source", reasons=(reason,), line=why)
        self._tracker.clear(node, clear)


_END_WORDS = {False: "endQuery returns the node", True: "the query no longer returns the node"}


def _labelled(answer: MetricAnswer) -> Iterator[tuple[Mapping[str, str], MetricSample | None]]:
    """Label sets with their samples; None: without a usable value."""
    for sample in answer.samples:
        yield sample.labels, sample
    for labels in answer.unusable:
        yield labels, None


def _message(rule: MetricQuery, samples: Sequence[MetricSample]) -> str:
    first = samples[0]
    labels = ", ".join(f"{name}={text}" for name, text in sorted(first.labels.items()) if name != rule.node_label)
    more = f" and {len(samples) - 1} more series" if len(samples) > 1 else ""
    return shorten(f"query {rule.name} returned {first.value:g}{more}{f' ({labels})' if labels else ''}")
