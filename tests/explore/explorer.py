"""Visits every state of a world: all orders of its steps, each state once.

States are found depth first, and a state is the value that the world says. Two reductions leave out orders that lead
to the same states: each state is visited once, and *sleep sets* (Godefroid, "Partial-Order Methods", 1996) leave out a
step that commutes with the one just taken and was tried before it. A state that is reached again with a smaller sleep
set is visited again for the steps that are new.

From every state the world must also come to rest: if nobody disturbs it any more, its own steps (``calm_step``) end
in a state where nothing is left to do, and what must hold at rest holds there.
"""

import time
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

S = TypeVar("S", bound=Hashable)

CALM_LIMIT = 120  # steps until a world without disturbance is at rest


class Step(NamedTuple):
    """One step that is possible now. what: its name, which a trace shows and which replays it.

    touches: what it reads or changes; steps with nothing in common commute
    """

    what: tuple[Any, ...]
    touches: frozenset[str]

    def commutes(self, other: "Step") -> bool:
        return self.touches.isdisjoint(other.touches)


class World(Protocol[S]):
    def initial(self) -> S: ...

    def steps(self, state: S) -> Sequence[Step]:
        """What can happen next; the same for the same state."""

    def apply(self, state: S, step: Step) -> S: ...

    def violation(self, before: S, step: Step, after: S) -> str:
        """What this step must not have done; empty if it is all right."""

    def calm_step(self, state: S) -> Step | None:
        """What happens next if nobody disturbs; None at rest."""

    def violation_at_rest(self, state: S) -> str: ...

    def end(self) -> None:
        """Nothing will be asked any more."""


@dataclass(frozen=True)
class Violation:
    """trace: the steps from the initial state; the last ones, from ``calm`` on, are those without disturbance."""

    text: str
    trace: tuple[Step, ...]
    calm: int

    def __str__(self) -> str:
        lines = [f"  {number:3} {'. ' if number >= self.calm else ''}{' '.join(map(str, step.what))}"
                 for number, step in enumerate(self.trace)]  # fmt: skip
        return "\n".join((self.text, *lines))


@dataclass
class Result:
    """states: distinct ones, visited with all that can happen in them. complete: nothing was left out by a limit.

    settled: states beyond them that were only met while a world came to rest; rests: distinct states of rest
    """

    states: int = 0
    steps: int = 0
    depth: int = 0
    settled: int = 0
    rests: int = 0
    seconds: float = 0.0
    complete: bool = False
    violations: list[Violation] = field(default_factory=list)

    def __str__(self) -> str:
        how = "all of them" if self.complete else "not all of them"
        return (
            f"{self.states:,} states ({how}), {self.steps:,} steps, depth {self.depth}, {self.rests:,} states of rest, "
            f"{self.seconds:.0f} s, {len(self.violations)} violations"
        )


@dataclass
class _Frame(Generic[S]):
    state: S
    todo: list[Step]
    done: list[Step]
    sleep: frozenset[Step]
    by: Step | None


class Explorer(Generic[S]):
    """depth: longest trace; states, seconds: bounds of the search; most: violations after which it ends."""

    def __init__(
        self, world: World[S], *, depth: int = 10_000, states: int = 1 << 62, seconds: float = float("inf"),
        most: int = 1, reduce: bool = True,
    ) -> None:  # fmt: skip
        self._world = world
        self._depth, self._states, self._seconds, self._most = depth, states, seconds, most
        self._reduce = reduce
        self._visited: dict[S, frozenset[Step]] = {}
        self._rests: dict[S, tuple[S, str]] = {}  # by state: where it comes to rest, and what is wrong there
        self.result = Result()

    def run(self) -> Result:
        result, begun = self.result, time.monotonic()
        stack = [self._frame(self._world.initial(), frozenset(), None)]
        result.complete = True
        self._check_rest(stack)
        while stack:
            frame = stack[-1]
            if not frame.todo:
                stack.pop()
                continue
            if len(result.violations) >= self._most or result.states >= self._states:
                result.complete = False
                break
            if result.steps & 63 == 0 and time.monotonic() - begun > self._seconds:
                result.complete = False
                break
            step = frame.todo.pop()
            after = self._world.apply(frame.state, step)
            result.steps += 1
            sleep = (
                frozenset(s for s in (*frame.sleep, *frame.done) if s.commutes(step)) if self._reduce else frozenset()
            )
            frame.done.append(step)
            wrong = self._world.violation(frame.state, step, after)
            if wrong:
                self._note(wrong, [*_trace(stack), step])
                continue
            if len(stack) >= self._depth:
                result.complete = False
                continue
            known = self._visited.get(after)
            if known is not None and known <= sleep:
                continue
            stack.append(self._frame(after, sleep, step))
            result.depth = max(result.depth, len(stack) - 1)
            self._check_rest(stack)
        result.seconds = time.monotonic() - begun
        result.settled = len(self._rests) - result.states
        result.rests = len({rest for rest, _ in self._rests.values()})
        return result

    def _frame(self, state: S, sleep: frozenset[Step], by: Step | None) -> "_Frame[S]":
        known = self._visited.get(state)
        steps = self._world.steps(state)
        if known is None:
            self.result.states += 1
            self._visited[state] = sleep
            todo = [step for step in steps if step not in sleep]
        else:
            self._visited[state] = known & sleep
            todo = [step for step in steps if step in known and step not in sleep]
        return _Frame(state, todo[::-1], [], sleep, by)

    def _check_rest(self, stack: "list[_Frame[S]]") -> None:
        """Whether the world comes to rest from here, and is all right there."""
        state = stack[-1].state
        if state in self._rests:
            return
        path: dict[S, None] = {}
        taken: list[Step] = []
        wrong, at = "", state
        while at not in self._rests:
            step = self._world.calm_step(at)
            if step is None or at in path:  # a circle of timers is rest, too
                self._rests[at] = at, self._world.violation_at_rest(at)
                break
            path[at] = None
            if len(path) > CALM_LIMIT:
                self._rests[at] = at, "it never comes to rest"
                break
            after = self._world.apply(at, step)
            taken.append(step)
            wrong = self._world.violation(at, step, after)
            if wrong:
                self._rests[after] = after, wrong
            at = after
        end = self._rests[at]
        for each in path:
            self._rests.setdefault(each, end)
        if end[1]:
            trace = _trace(stack)
            self._note(end[1], [*trace, *taken], len(trace))

    def _note(self, text: str, trace: list[Step], calm: int = 1 << 30) -> None:
        self.result.violations.append(Violation(text, tuple(trace), calm))


def _trace(stack: "Iterable[_Frame[S]]") -> list[Step]:
    return [frame.by for frame in stack if frame.by is not None]


def find(world: World[S], depths: Iterable[int] = (3, 6, 12, 25, 10_000)) -> Violation | None:
    """The first violation, with a short trace: searches to small depths first."""
    for depth in depths:
        result = Explorer(world, depth=depth).run()
        if result.violations:
            return shortest(world, result.violations[0])
        if result.complete:
            return None
    return None


def replay(world: World[S], trace: Iterable[Step], *, strict: bool = True) -> tuple[S, str]:
    """The state after the steps of ``trace`` and what follows undisturbed, and what is wrong on the way or at rest.

    Raises ValueError for a step that is not possible where it comes; not strict: leaves it out.
    """
    state = world.initial()
    for wanted in trace:
        step = next((step for step in world.steps(state) if step.what == wanted.what), None) or world.calm_step(state)
        if step is None or step.what != wanted.what:
            if strict:
                raise ValueError(f"{wanted.what} is not possible here: {[each.what for each in world.steps(state)]}")
            continue
        after = world.apply(state, step)
        wrong = world.violation(state, step, after)
        if wrong:
            return after, wrong
        state = after
    return settle(world, state)


def settle(world: World[S], state: S) -> tuple[S, str]:
    """Where the world comes to rest if nobody disturbs it, and what is wrong on the way or there."""
    seen: set[S] = set()
    while state not in seen:
        seen.add(state)
        step = world.calm_step(state)
        if step is None:
            break
        if len(seen) > CALM_LIMIT:
            return state, "it never comes to rest"
        after = world.apply(state, step)
        wrong = world.violation(state, step, after)
        if wrong:
            return after, wrong
        state = after
    return state, world.violation_at_rest(state)


def shortest(world: World[S], found: Violation) -> Violation:
    """The violation without the steps of its trace that it does not need."""
    trace = list(found.trace[: found.calm])
    text = found.text
    changed = True
    while changed:
        changed = False
        for number in range(len(trace) - 1, -1, -1):
            fewer = [*trace[:number], *trace[number + 1 :]]
            try:
                _, wrong = replay(world, fewer)
            except (ValueError, LookupError):
                continue
            if wrong:
                trace, text, changed = fewer, wrong, True
                break
    return Violation(text, tuple(trace), len(trace))
