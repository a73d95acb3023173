"""Finds the nodes of a job, or those with a label, for callers without permission to read pods and nodes.

``/api/nodes?nodelabel=key=value[,…]&job=NAMESPACE:key=value[,…]``. The parameters are validated before any request.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

import msgspec
from fastapi import Query
from pydantic import AfterValidator

from muster_kube.api.client import KubeClient
from muster_kube.api.errors import ApiError, ConfigError
from muster_kube.api.objects import Metadata
from muster_tainter.http.volume_trials import HttpRefusal
from muster_tainter.policy import label_syntax

FRESH_S = 5.0  # calls within this time share an answer
LISTS_AT_ONCE = 2
WAITING_AT_MOST = 32
TEXT_LIMIT = 2048  # characters of one parameter
LABELS_LIMIT = 16  # of one parameter
_KNOWN_LIMIT = 64
_LIST_S = 20.0
_UNFINISHED = "status.phase!=Succeeded,status.phase!=Failed"
_NAMESPACE_LIMIT = 63


class _PlacedSpec(msgspec.Struct, frozen=True, rename="camel"):
    node_name: str = ""


class _Placed(msgspec.Struct, frozen=True):
    """A pod or a Node, reduced to its place."""

    metadata: Metadata
    spec: _PlacedSpec = _PlacedSpec()


@dataclass(frozen=True)
class ObjectQuery:
    """One list request to the API server. namespace: of pods; empty for Nodes."""

    selector: str
    namespace: str = ""


def _check_labels(text: str) -> str:
    """Raises ValueError."""
    pairs = text.split(",")
    if len(pairs) > LABELS_LIMIT:
        raise ValueError(f"expected at most {LABELS_LIMIT} labels")
    for pair in pairs:
        key, equals, wanted = pair.partition("=")
        if not equals:
            # the whole value is quoted with the error in any case
            part = f"{pair[:80]!r}: " if len(pairs) > 1 else ""
            raise ValueError(f"{part}expected key=value[,key=value]")
        if not label_syntax.is_key(key):
            raise ValueError(f"{key[:80]!r}: {label_syntax.KEY_WORDS}")
        if not label_syntax.is_value(wanted):
            raise ValueError(f"{wanted[:80]!r}: {label_syntax.VALUE_WORDS}")
    return text


def _check_job(text: str) -> str:
    """Raises ValueError."""
    namespace, colon, labels = text.partition(":")
    if not colon or not _is_namespace(namespace):
        raise ValueError("expected NAMESPACE:key=value[,key=value]")
    _check_labels(labels)
    return text


# parameters of a route
Labels = Annotated[
    str,
    Query(max_length=TEXT_LIMIT, description="nodes with these labels: key=value[,key=value]"),
    AfterValidator(_check_labels),
]
Job = Annotated[
    str,
    Query(max_length=TEXT_LIMIT, description="nodes on which pods run: NAMESPACE:key=value[,key=value] of the pods"),
    AfterValidator(_check_job),
]


def object_queries(nodelabel: str | None, job: str | None) -> tuple[ObjectQuery, ...]:
    """The lists needed for these parameters, which are :data:`Labels` and :data:`Job`."""
    queries = [ObjectQuery(nodelabel)] if nodelabel is not None else []
    if job is not None:
        namespace, _, labels = job.partition(":")
        queries.append(ObjectQuery(labels, namespace))
    return tuple(queries)


def _is_namespace(text: str) -> bool:
    return (
        0 < len(text) <= _NAMESPACE_LIMIT
        and text.isascii()
        and text.replace("-", "a").isalnum()
        and text == text.lower()
        and "-" not in (text[0], text[-1])
    )


@dataclass
class _Known:
    names: frozenset[str]
    at: float


class NodeLocator:
    """clock: monotonic seconds."""

    def __init__(self, client: KubeClient, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._client = client
        self._clock = clock
        self._known: OrderedDict[ObjectQuery, _Known] = OrderedDict()
        self._under_way: dict[ObjectQuery, asyncio.Task[frozenset[str]]] = {}
        self._lists = asyncio.Semaphore(LISTS_AT_ONCE)

    async def names(self, queries: tuple[ObjectQuery, ...]) -> frozenset[str] | None:
        """Nodes in the results of all ``queries``; None without queries. Raises HttpRefusal (429, 503)."""
        found: frozenset[str] | None = None
        for each in queries:
            names = await self._names(each)
            found = names if found is None else found & names
        return found

    async def _names(self, query: ObjectQuery) -> frozenset[str]:
        known = self._known.get(query)
        if known is not None and self._clock() - known.at < FRESH_S:
            return known.names
        task = self._under_way.get(query)
        if task is None:
            if len(self._under_way) >= WAITING_AT_MOST:
                raise HttpRefusal(429, "TooManyRequests", "too many queries are waiting", {"Retry-After": "2"})
            task = self._under_way[query] = asyncio.create_task(self._list(query))
            task.add_done_callback(lambda _: self._under_way.pop(query, None))
        try:
            return await asyncio.shield(task)  # other callers may wait for it, too
        except (ApiError, ConfigError, TimeoutError) as error:
            text = str(error) or f"no answer within {_LIST_S:g} s"
            raise HttpRefusal(503, "ServiceUnavailable", f"the API server request failed: {text}") from error

    async def _list(self, query: ObjectQuery) -> frozenset[str]:
        names: set[str] = set()
        params: dict[str, str | int | bool] = {"labelSelector": query.selector}
        path = "/api/v1/nodes"
        if query.namespace:
            path = f"/api/v1/namespaces/{query.namespace}/pods"
            params["fieldSelector"] = _UNFINISHED
        async with asyncio.timeout(_LIST_S), self._lists:
            async for page in self._client.list_pages(path, _Placed, params=params, transform=_slim):
                for item in page.items:
                    names.add(item.spec.node_name if query.namespace else item.metadata.name)
        names.discard("")  # a pod that is not scheduled yet
        self._known[query] = _Known(frozenset(names), self._clock())
        self._known.move_to_end(query)
        while len(self._known) > _KNOWN_LIMIT:
            self._known.popitem(last=False)
        return self._known[query].names


def _slim(item: _Placed) -> _Placed:
    return _Placed(metadata=Metadata(name=item.metadata.name), spec=item.spec)
