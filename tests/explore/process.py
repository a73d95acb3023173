"""A program that runs step by step: its API client asks the explorer, its loop runs only between two steps.

:class:`Process` holds one running program. :class:`Machine` turns it into a table of states and transitions: a state is
what the program remembers, a transition is one input. The real code runs once for each pair of state and input, in
however many states of the whole world it occurs. A program that waits cannot be copied, so a state that has no
running program left is made again by playing the inputs that led to it.
"""

import asyncio
import logging
import random
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Hashable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, NamedTuple

import msgspec
from tests.explore.api_server import GONE, Answer, Request
from tests.explore.memory import MemoryReader
from tests.explore.stepped_loop import SteppedLoop

from muster_kube.api.client import KubeClient, Params, _decode
from muster_kube.api.config import ClusterConfig
from muster_kube.api.errors import Unreachable, api_error
from muster_kube.api.list_decoder import ListPage, PageReader

LONG_S = 30.0  # how far ahead a timer is makes no difference beyond this
LIVE_LIMIT = 256  # running programs that are kept


class Input(NamedTuple):
    """One thing that happens to a process.

    kind: ``answer`` (to the request number ``at``; value: an Answer, or None: no answer ever comes), ``event`` (at: the
    path of the watch; value: the line), ``gone`` and ``closed`` (at: the path of the watch), ``timer`` (the next one
    fires), or a name of its own, for :meth:`Process.do`
    """

    kind: str
    at: Any = None
    value: Any = None


class View(NamedTuple):
    """What can be seen of a process from outside.

    requests: those that wait for an answer, the oldest first. watches: paths of open watches. timers: whether one is
    pending. shown: what the process shows besides; error: what went wrong in it, empty if nothing did
    """

    requests: tuple[Request, ...]
    watches: tuple[str, ...]
    timers: bool
    shown: Any
    error: str


class _Pending(NamedTuple):
    request: Request
    answer: "asyncio.Future[Answer | None]"


class Process:
    """A running program. ``start``: begins its tasks; ``roots``: what it remembers; ``shown``: for the world to see."""

    reader: MemoryReader

    def __init__(self) -> None:
        self.loop = SteppedLoop()
        self.pending: list[_Pending] = []
        self.watched: dict[str, asyncio.Queue[bytes | None]] = {}
        self.tasks: list[asyncio.Task[Any]] = []
        self.client = SteppedClient(self)

    # for the program

    def start(self) -> None:
        raise NotImplementedError

    def do(self, name: str, value: Any) -> None:
        """An input of the program's own kind."""
        raise NotImplementedError(name)

    def roots(self) -> tuple[object, ...]:
        raise NotImplementedError

    def shown(self) -> Hashable:
        return None

    def ignores(self, request: Request) -> bool:
        """Requests that never get an answer and are not explored."""
        return False

    # for the machine

    def begin(self) -> None:
        with self._running():
            self.start()

    def feed(self, each: Input) -> tuple[int, ...]:
        """Take one input and run until nothing can run; returns which of the earlier requests still wait."""
        before = list(self.pending)
        with self._running():
            match each.kind:
                case "answer":
                    self.pending.pop(each.at).answer.set_result(each.value)
                case "event":
                    self.watched[each.at].put_nowait(each.value)
                case "gone":
                    self.watched[each.at].put_nowait(GONE)
                case "closed":
                    self.watched[each.at].put_nowait(None)
                case "timer":
                    self.loop.fire_next()
                case _:
                    self.do(each.kind, each.value)
        return tuple(number for number, one in enumerate(before) if one in self.pending)

    @contextmanager
    def _running(self) -> Iterator[None]:
        outer, chance = asyncio.events._get_running_loop(), random.Random
        asyncio.events._set_running_loop(self.loop)
        random.Random = Middle  # type: ignore[misc]
        try:
            yield
            if not self.loop.is_closed():
                self.loop.settle()
        finally:
            random.Random = chance  # type: ignore[misc]
            asyncio.events._set_running_loop(outer)

    def view(self) -> View:
        requests = tuple(one.request for one in self.pending)
        errors = [*self.loop.errors, *(str(task.exception()) for task in self.tasks if _failed(task))]
        watches = tuple(sorted(self.watched))
        return View(requests, watches, bool(self.loop.timers()), self.shown(), "; ".join(errors))

    def memory(self) -> Hashable:
        view = self.view()
        now = self.loop.time()
        timers = tuple(
            (min(round(each.when() - now, 3), LONG_S), getattr(each, "_callback", None), getattr(each, "_args", None))
            for each in self.loop.timers()
        )
        return view, self.reader.read(self.roots(), tuple(self._busy()), timers)

    def _busy(self) -> "list[asyncio.Task[Any]]":
        """The tasks that do not just wait for work; those of the same function by the key that they handle."""
        found: list[tuple[str, str, int, asyncio.Task[Any]]] = []
        for task in self.loop.tasks:
            inner: Any = task.get_coro()
            name, held = inner.cr_code.co_qualname, inner.cr_frame.f_locals if inner.cr_frame is not None else {}
            while getattr(inner, "cr_await", None) is not None and hasattr(inner.cr_await, "cr_code"):
                inner = inner.cr_await
            if not task.done() and inner.cr_code.co_qualname not in self.reader.idle:
                found.append((name, str(held.get("key", "")), len(found), task))
        return [task for *_, task in sorted(found)]

    def end(self) -> None:
        with self._running():
            self.loop.end()

    def spawn(self, coroutine: Any) -> "asyncio.Task[Any]":
        task = self.loop.create_task(coroutine)
        self.tasks.append(task)
        return task

    async def ask(self, request: Request) -> bytes:
        """The body of the answer. Raises ApiError."""
        future: asyncio.Future[Answer | None] = self.loop.create_future()
        if self.ignores(request):
            await future
        pending = _Pending(request, future)
        self.pending.append(pending)
        try:
            answer = await future
        finally:
            if pending in self.pending:
                self.pending.remove(pending)
        if answer is None:
            raise Unreachable("no answer", request.path)
        if answer.status >= 300:
            raise api_error(answer.status, answer.body, request.path)
        return answer.body


def _failed(task: "asyncio.Task[Any]") -> bool:
    return task.done() and not task.cancelled() and task.exception() is not None


class Middle(random.Random):
    """No chance: always the middle."""

    def random(self) -> float:
        return 0.5


class SteppedClient(KubeClient):
    """Asks the explorer instead of a server. One attempt for each call: a retry would be the same step again."""

    def __init__(self, process: Process) -> None:
        super().__init__(ClusterConfig("explorer", "http://explored"))
        self._process = process

    async def _call(
        self, method: str, path: str, body: object | None, content_type: str, kind: Any, params: Params | None,
        timeout_s: float | None,
    ) -> Any:  # fmt: skip
        content = b"" if body is None else msgspec.json.encode(body)
        raw = await self._process.ask(Request(method, path, content, _pairs(params)))
        return _decode(bytearray(raw), kind, path)

    async def list_page(self, path: str, type: Any, *, params: Params | None = None, transform: Any = None,
                        timeout_s: float | None = None) -> ListPage[Any]:  # fmt: skip
        raw = await self._process.ask(Request("GET", path, b"", _pairs(params)))
        reader: PageReader[Any] = PageReader(type, path, transform=transform)
        reader.feed(raw)
        return reader.finish()

    @asynccontextmanager
    async def watch(self, path: str, params: Params, *, silence_s: float) -> AsyncIterator[AsyncIterator[list[bytes]]]:
        queue: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._process.watched[path] = queue
        try:
            yield _Lines(queue)
        finally:
            self._process.watched.pop(path, None)


class _Lines:
    """The batches of a watch; it ends with None."""

    def __init__(self, queue: "asyncio.Queue[bytes | None]") -> None:
        self._queue = queue

    def __aiter__(self) -> "_Lines":
        return self

    async def __anext__(self) -> list[bytes]:
        line = await self._queue.get()
        if line is None:
            raise StopAsyncIteration
        return [line]


def _pairs(params: Params | None) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((key, str(value)) for key, value in (params or {}).items()))


class Outcome(NamedTuple):
    """state: the number of the new state. kept: which of the requests before still wait, by their numbers."""

    state: int
    kept: tuple[int, ...]


class Machine:
    """All states of one kind of process that have been met. ``make``: a process before its start."""

    def __init__(self, make: Callable[[], Process]) -> None:
        self._make = make
        self._numbers: dict[Hashable, int] = {}
        self._from: list[tuple[int, Input] | None] = []  # on the shortest way that is known
        self._inputs: list[int] = []  # on that way
        self._steps: dict[tuple[int, Input], Outcome] = {}
        self._live: OrderedDict[int, Process] = OrderedDict()
        self.views: list[View] = []
        self.started: dict[Hashable, int] = {}
        self.replayed = 0

    @property
    def transitions(self) -> int:
        return len(self._steps)

    def start(self, *first: Input) -> int:
        """The state of a process that has just started, after the inputs ``first``."""
        known = self.started.get(first)
        if known is None:
            process = self._begin()
            known = self._note(process, None)
            self.started[()] = known
            for each in first:
                known = self.step(known, each).state
            self.started[first] = known
        return known

    def step(self, state: int, each: Input) -> Outcome:
        known = self._steps.get((state, each))
        if known is not None:
            return known
        process = self._live.pop(state, None) or self._play(state)
        kept = process.feed(each)
        outcome = self._steps[state, each] = Outcome(self._note(process, (state, each)), kept)
        return outcome

    def _begin(self) -> Process:
        process = self._make()
        process.begin()
        return process

    def _note(self, process: Process, came: tuple[int, Input] | None) -> int:
        memory = process.memory()
        number = self._numbers.setdefault(memory, len(self.views))
        inputs = 0 if came is None else self._inputs[came[0]] + 1
        if number == len(self.views):
            self.views.append(process.view())
            self._from.append(came)
            self._inputs.append(inputs)
        elif inputs < self._inputs[number]:
            self._from[number], self._inputs[number] = came, inputs
        replaced = self._live.pop(number, None)
        if replaced is not None:
            replaced.end()
        self._live[number] = process
        if len(self._live) > LIVE_LIMIT:
            self._live.popitem(last=False)[1].end()
        return number

    def _play(self, state: int) -> Process:
        """A process in ``state``, by playing what leads to it."""
        inputs = self.inputs(state)
        process = self._begin()
        for each in inputs:
            process.feed(each)
        self.replayed += len(inputs)
        return process

    def end(self) -> None:
        """End the running programs; the tables stay."""
        while self._live:
            self._live.popitem()[1].end()

    def inputs(self, state: int) -> list[Input]:
        """What leads to ``state``."""
        found: list[Input] = []
        while (came := self._from[state]) is not None:
            state, each = came
            found.append(each)
        return found[::-1]


def quiet() -> None:
    """Explored programs log what happens to them; nobody reads it."""
    logging.disable(logging.CRITICAL)
