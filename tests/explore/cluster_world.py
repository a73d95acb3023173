"""A world of processes around one API server: everything between a request and its answer, and between a write and its
event, is a step of its own.

A subclass adds what happens outside (faults, people, crashes: :meth:`ClusterWorld.outside_steps`) and what must hold.
Its own part of the state, :class:`State`'s ``outside``, can be any value.

Steps of a process P, by name: ``(P, serve, n)`` the server executes request n, ``(P, answer, n)`` its answer arrives,
``(P, event, path)`` the watch of ``path`` delivers its next event, ``(P, timer)`` the next timer fires. Disturbances,
each as often as ``outside`` allows: ``(P, lose, n)`` no answer to request n ever arrives, whether it was executed, or
will be, or not; ``(P, gone, path)`` the watch ends with 410; ``(P, close, path)`` it just ends; ``(P, crash)``;
``(P, old, n)`` the server answers request n, a list from its cache, as it was before the last change of the collection.
``(late, n)``: the server executes a request whose sender does not wait for it any more.
"""

from collections.abc import Hashable, Iterable, Sequence
from typing import Any, NamedTuple, cast

from tests.explore.api_server import ApiServer, Event, Request, events_between, execute, only
from tests.explore.explorer import Step
from tests.explore.process import Input, Machine, View

Outside = Any


class Link(NamedTuple):
    """Between one process and the server. queues: by path of a collection that it listed, the events that it has not
    received. answers: for each of its requests, the answer on its way; None: the server has not executed it."""

    queues: tuple[tuple[str, tuple[Event, ...]], ...] = ()
    answers: tuple[Any, ...] = ()


class State(NamedTuple):
    """late: requests whose senders do not wait for them, and that may still be executed.

    caches: by collection, what a cache that is behind would list, as long as a list may come from one
    """

    server: ApiServer
    processes: tuple[int, ...]
    links: tuple[Link, ...]
    late: tuple[Request, ...]
    outside: Outside
    caches: tuple[tuple[str, ApiServer], ...] = ()


Packed = tuple[int, ...]


class ClusterWorld:
    """names: the processes, in the order in which they act while the world comes to rest. machines: theirs; processes
    with the same code and settings share one."""

    def __init__(self, machines: Sequence[tuple[str, Machine]]) -> None:
        self.names = [name for name, _ in machines]
        self.machines = [machine for _, machine in machines]
        self._values: list[Hashable] = []
        self._numbers: dict[Hashable, int] = {}
        self._unpacked: dict[Packed, State] = {}
        self._own: dict[tuple[int, int, Link, Hashable, Hashable], tuple[Step, ...]] = {}

    # what a subclass says

    def first_state(self) -> State:
        raise NotImplementedError

    def outside_steps(self, state: State) -> Iterable[Step]:
        """What people, hardware and other programs may do now."""
        raise NotImplementedError

    def outside_apply(self, state: State, step: Step) -> State:
        raise NotImplementedError

    def allows(self, outside: Outside, kind: str, name: str) -> bool:
        """Whether the disturbance ``kind`` (one of :data:`DISTURBANCES`) may happen to the process once more."""
        raise NotImplementedError

    def spend(self, outside: Outside, kind: str, name: str) -> Outside:
        """``outside`` after the disturbance."""
        raise NotImplementedError

    def pauses_end(self, name: str, view: View) -> bool:
        """Whether timers of a process in this state may fire. A process that is about to be stopped anyway, and whose
        retries have no end, would make the world infinite."""
        return True

    def restart(self, state: State, name: str) -> int:
        """The machine's state of the process after a crash."""
        return self.machines[self.names.index(name)].start()

    def served(self, before: State, request: Request, status: int, after: State) -> State:
        """Called after the server has executed a request of a process."""
        return after

    def noticed(self, request: Request) -> tuple[str, ...]:
        """What :meth:`served` reads or changes for the request, as in :attr:`Step.touches`, besides the server."""
        return ()

    def calm_outside(self, state: State) -> Step | None:
        """What the world does by itself when all processes wait, such as electing a leader. None: nothing."""
        return None

    def calm_wait(self, state: State) -> Step | None:
        """What time alone brings, when nothing else is left."""
        return None

    def wrong_step(self, before: State, step: Step, after: State) -> str:
        raise NotImplementedError

    def wrong_at_rest(self, state: State) -> str:
        raise NotImplementedError

    # the world of the explorer: its states are numbers of values

    def pack(self, state: State) -> Packed:
        parts: tuple[Hashable, ...] = (state.server, state.late, state.outside, state.caches, *state.links)
        packed = (*state.processes, *(self._number(part) for part in parts))
        if packed not in self._unpacked:
            if len(self._unpacked) > 1 << 12:
                self._unpacked.clear()
            self._unpacked[packed] = state
        return packed

    def unpack(self, packed: Packed) -> State:
        known = self._unpacked.get(packed)
        if known is not None:
            return known
        count = len(self.names)
        server, late, outside, caches, *links = (cast("Any", self._values[number]) for number in packed[count:])
        state = State(server, packed[:count], tuple(links), late, outside, caches)
        self._unpacked[packed] = state
        return state

    def _number(self, value: Hashable) -> int:
        number = self._numbers.setdefault(value, len(self._values))
        if number == len(self._values):
            self._values.append(value)
        return number

    def end(self) -> None:
        """End all running programs."""
        for machine in set(self.machines):
            machine.end()

    def initial(self) -> Packed:
        return self.pack(self.first_state())

    def view(self, state: State, name: str) -> View:
        at = self.names.index(name)
        return self.machines[at].views[state.processes[at]]

    def steps(self, packed: Packed) -> list[Step]:
        state = self.unpack(packed)
        found = [step for at in range(len(self.names)) for step in self._steps_of(state, at)]
        found += [
            Step(("late", number), frozenset({"server", "late", *self.noticed(request)}))
            for number, request in enumerate(state.late)
        ]
        found += self.outside_steps(state)
        return found

    def apply(self, packed: Packed, step: Step) -> Packed:
        return self.pack(self.step(self.unpack(packed), step))

    def violation(self, before: Packed, step: Step, after: Packed) -> str:
        state = self.unpack(after)
        for name in self.names:
            error = self.view(state, name).error
            if error:
                return f"{name}: {error}"
        return self.wrong_step(self.unpack(before), step, state)

    def calm_step(self, packed: Packed) -> Step | None:
        """Late requests are never executed; what processes can do, they do; last come timers that change something."""
        state = self.unpack(packed)
        if state.late:
            return Step(("forget",), frozenset({"late"}))
        for at in range(len(self.names)):
            for step in self._steps_of(state, at):
                if step.what[1] in ("serve", "answer", "event"):
                    return step
        outside = self.calm_outside(state)
        if outside is not None:
            return outside
        for at, name in enumerate(self.names):
            if self._ticks(state.processes[at], at):
                return self._step(name, "timer")
        return self.calm_wait(state)

    def violation_at_rest(self, packed: Packed) -> str:
        return self.wrong_at_rest(self.unpack(packed))

    # steps of processes

    def _ticks(self, number: int, at: int) -> bool:
        """Whether its next timer changes anything."""
        machine = self.machines[at]
        view = machine.views[number]
        return (
            view.timers
            and self.pauses_end(self.names[at], view)
            and machine.step(number, Input("timer")).state != number
        )

    @staticmethod
    def _step(name: str, kind: str, *more: Hashable, touches: Iterable[str] = ()) -> Step:
        return Step((name, kind, *more), frozenset({name, *touches}))

    def _steps_of(self, state: State, at: int) -> tuple[Step, ...]:
        name, link, number = self.names[at], state.links[at], state.processes[at]
        allowed = tuple(kind for kind in DISTURBANCES if self.allows(state.outside, kind, name))
        behind = tuple(path for path, _ in state.caches) if "old" in allowed else ()
        key = (at, number, link, allowed, behind)
        known = self._own.get(key)
        if known is None:
            known = self._own[key] = tuple(self._find_steps(name, at, number, link, allowed, behind))
        return known

    def _find_steps(
        self, name: str, at: int, number: int, link: Link, allowed: tuple[str, ...], behind: tuple[str, ...]
    ) -> Iterable[Step]:
        view = self.machines[at].views[number]
        for n, answer in enumerate(link.answers):
            if answer is None:
                request = view.requests[n]._replace(by=name)
                yield self._step(name, "serve", n, touches=("server", *self.noticed(request)))
                if request.path in behind and dict(request.params).get("resourceVersion") == "0":
                    yield self._step(name, "old", n, touches=("server", "outside"))
            else:
                yield self._step(name, "answer", n)
            if "lose" in allowed and view.requests[n].writes:
                yield self._step(name, "lose", n, touches=("late", "outside"))
        for path, queue in link.queues:
            if path in view.watches:
                if queue:
                    yield self._step(name, "event", path)
                for kind in ("gone", "close"):
                    if kind in allowed:
                        yield self._step(name, kind, path, touches=("outside",))
        if self._ticks(number, at):
            yield self._step(name, "timer")
        if "crash" in allowed:
            yield self._step(name, "crash", touches=("late", "outside"))

    def step(self, state: State, step: Step) -> State:
        return self._with_caches(state, self._take_step(state, step))

    def _with_caches(self, before: State, after: State) -> State:
        if not any(self.allows(after.outside, "old", name) for name in self.names):
            return after._replace(caches=()) if after.caches else after
        if after.server is before.server:
            return after
        caches = dict(after.caches)
        for collection in {path.rpartition("/")[0] for path, _ in (*before.server.objects, *after.server.objects)}:
            if events_between(before.server, after.server, collection):
                caches[collection] = only(before.server, collection)
        return after._replace(caches=tuple(sorted(caches.items())))

    def _take_step(self, state: State, step: Step) -> State:
        if step.what == ("forget",):
            return state._replace(late=())
        if step.what[0] == "late":
            return self._execute_late(state, step.what[1])
        if step.what[0] not in self.names or step.what[1] not in _OF_PROCESSES:
            return self.outside_apply(state, step)
        at = self.names.index(step.what[0])
        kind, more = step.what[1], step.what[-1]
        match kind:
            case "serve":
                return self._serve(state, at, more)
            case "old":
                return self._serve_old(state, at, more)
            case "answer":
                answer = state.links[at].answers[more]
                return self.feed(state, at, Input("answer", more, answer))
            case "lose":
                return self._lose(state, at, more)
            case "event":
                path = more
                queues = dict(state.links[at].queues)
                head, *queues[path] = queues[path]  # type: ignore[assignment]
                state = self._with_queues(state, at, queues)
                return self.feed(state, at, Input("event", path, head.line))
            case "gone" | "close":
                state = state._replace(outside=self.spend(state.outside, kind, self.names[at]))
                if kind == "gone":
                    queues = {path: queue for path, queue in state.links[at].queues if path != more}
                    state = self._with_queues(state, at, queues)
                return self.feed(state, at, Input("gone" if kind == "gone" else "closed", more))
            case "timer":
                return self.feed(state, at, Input("timer"))
            case _:
                return self._crash(state, at)

    def feed(self, state: State, at: int, each: Input) -> State:
        """The process takes an input; its new requests are on their way."""
        machine = self.machines[at]
        number = state.processes[at]
        before = machine.views[number].requests
        outcome = machine.step(number, each)
        link = state.links[at]
        gone = set(range(len(before))) - set(outcome.kept) - ({each.at} if each.kind == "answer" else set())
        name = self.names[at]
        late = [before[n]._replace(by=name) for n in sorted(gone) if link.answers[n] is None and before[n].writes]
        kept = tuple(link.answers[n] for n in outcome.kept)
        new = len(machine.views[outcome.state].requests) - len(kept)
        return state._replace(
            processes=_replaced(state.processes, at, outcome.state),
            links=_replaced(state.links, at, link._replace(answers=kept + (None,) * new)),
            late=(*state.late, *late),
        )

    def _serve(self, state: State, at: int, n: int) -> State:
        request = self.machines[at].views[state.processes[at]].requests[n]
        request = request._replace(by=self.names[at])
        server, answer, events = execute(state.server, request)
        after = self.publish(state._replace(server=server), events)
        link = after.links[at]
        queues = dict(link.queues)
        if _begins_watch(request) and answer.status == 200:
            queues[request.path] = ()  # what happens from here on, its watch delivers
        link = Link(_sorted(queues), _replaced(link.answers, n, answer))
        after = after._replace(links=_replaced(after.links, at, link))
        return self.served(state, request, answer.status, after)

    def _serve_old(self, state: State, at: int, n: int) -> State:
        """From a cache that is behind; what has changed since, the watch delivers."""
        request = self.machines[at].views[state.processes[at]].requests[n]
        old = dict(state.caches)[request.path]
        outside = self.spend(state.outside, "old", self.names[at])
        after = self._serve(state._replace(server=old, outside=outside), at, n)._replace(server=state.server)
        if not _begins_watch(request):
            return after
        missed = events_between(old, state.server, request.path)
        queue = tuple(event for event in missed if self.sees(self.names[at], event))
        return self._with_queues(after, at, {**dict(after.links[at].queues), request.path: queue})

    def publish(self, state: State, events: Sequence[Event]) -> State:
        """Every watch of the collection will deliver the events, in this order."""
        if not events:
            return state
        links = []
        for at, link in enumerate(state.links):
            queues = dict(link.queues)
            for event in events:
                if event.collection in queues and self.sees(self.names[at], event):
                    queues[event.collection] = (*queues[event.collection], event)
            links.append(link._replace(queues=_sorted(queues)))
        return state._replace(links=tuple(links))

    def sees(self, name: str, event: Event) -> bool:
        """Whether the process's watch of that collection selects the object."""
        return True

    def _execute_late(self, state: State, n: int) -> State:
        request = state.late[n]
        server, answer, events = execute(state.server, request)
        after = self.publish(state._replace(server=server, late=_without(state.late, n)), events)
        return self.served(state, request, answer.status, after)

    def _lose(self, state: State, at: int, n: int) -> State:
        request = self.machines[at].views[state.processes[at]].requests[n]
        executed = state.links[at].answers[n] is not None
        late = state.late if executed else (*state.late, request._replace(by=self.names[at]))
        state = state._replace(late=late, outside=self.spend(state.outside, "lose", self.names[at]))
        return self.feed(state, at, Input("answer", n, None))

    def _crash(self, state: State, at: int) -> State:
        name = self.names[at]
        requests = self.machines[at].views[state.processes[at]].requests
        late = [request._replace(by=name) for request, answer in zip(requests, state.links[at].answers, strict=True)
                if answer is None and request.writes]  # fmt: skip
        state = state._replace(late=(*state.late, *late), outside=self.spend(state.outside, "crash", name))
        number = self.restart(state, name)
        link = Link((), (None,) * len(self.machines[at].views[number].requests))
        return state._replace(processes=_replaced(state.processes, at, number), links=_replaced(state.links, at, link))

    def _with_queues(self, state: State, at: int, queues: dict[str, Any]) -> State:
        link = state.links[at]._replace(queues=_sorted(queues))
        return state._replace(links=_replaced(state.links, at, link))


DISTURBANCES = ("lose", "gone", "close", "crash", "old")
_OF_PROCESSES = ("serve", "answer", "event", "timer", *DISTURBANCES)


def _begins_watch(request: Request) -> bool:
    """Whether it is a reflector's list."""
    return request.method == "GET" and "limit" in dict(request.params)


def _sorted(queues: dict[str, Any]) -> tuple[tuple[str, tuple[Event, ...]], ...]:
    return tuple(sorted((path, tuple(queue)) for path, queue in queues.items()))


def _replaced(values: tuple[Any, ...], at: int, value: Any) -> tuple[Any, ...]:
    return (*values[:at], value, *values[at + 1 :])


def _without(values: tuple[Any, ...], at: int) -> tuple[Any, ...]:
    return (*values[:at], *values[at + 1 :])
