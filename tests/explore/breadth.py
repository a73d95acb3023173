"""Visits the states of a world by the number of departures that they need: first those of the undisturbed course, then
all that one departure from it leads to, then two, …

A departure is any step other than ``calm_step``: another order, a lost answer, a crash, an edit. A violation is thus
found with the fewest departures, and a search that ends has visited all that so many departures can lead to. The idea
is that of Emmi, Qadeer and Rakamaric, "Delay-bounded scheduling", 2011.
"""

import time
from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from tests.explore.explorer import Step, Violation, World

S = TypeVar("S", bound=Hashable)
CALM_LIMIT = 1000  # steps until a world without disturbance is at rest
QUIET = 60  # steps without a visible change, after which a world rests: what goes on are clocks that ask again


class VisibleWorld(World[S], Protocol[S]):
    def visible(self, state: S) -> object: ...


@dataclass
class Result:
    """states: distinct ones. levels: those that were followed until they rest, by the number of departures. departures:
    of so many all were followed; -1: none."""

    states: int = 0
    steps: int = 0
    rests: int = 0
    seconds: float = 0.0
    departures: int = -1
    levels: list[int] = field(default_factory=list)
    violations: list[Violation] = field(default_factory=list)

    def __str__(self) -> str:
        levels = ", ".join(f"{number:,}" for number in self.levels)
        return (
            f"{self.states:,} states ({levels} of them, after 0, 1, … departures, followed until they rest), "
            f"{self.steps:,} steps, {self.rests:,} rests, {self.seconds:.0f} s, {len(self.violations)} violations"
        )


class BreadthExplorer(Generic[S]):
    """departures, states, seconds: bounds of the search; most: violations after which it ends."""

    def __init__(
        self, world: VisibleWorld[S], *, departures: int = 99, states: int = 1 << 62, seconds: float = float("inf"),
        most: int = 1,
    ) -> None:  # fmt: skip
        self._world = world
        self._departures, self._states, self._seconds, self._most = departures, states, seconds, most
        self._came: dict[S, tuple[S, Step] | None] = {}
        self.result = Result()

    def run(self) -> Result:
        result, begun = self.result, time.monotonic()
        first = self._world.initial()
        self._came[first] = None
        result.states = 1
        level = deque([first])
        while level and len(result.levels) <= self._departures:
            result.levels.append(0)
            following: deque[S] = deque()
            calm = level  # of this level, and not walked to rest yet
            open_: list[S] = []
            while calm:
                if self._is_over(begun):
                    return self._ended(begun)
                self._walk(calm.popleft(), open_)
            for state in open_:
                if self._is_over(begun):
                    return self._ended(begun)
                self._depart(state, following)
            result.departures += 1
            level = following
        return self._ended(begun)

    def _walk(self, state: S, open_: list[S]) -> None:
        """Undisturbed, until it rests or meets a state that was visited."""
        seen, since = self._world.visible(state), 0
        for _ in range(CALM_LIMIT):
            now = self._world.visible(state)
            seen, since = now, since + 1 if now == seen else 0
            self.result.levels[-1] += 1
            open_.append(state)
            step = self._world.calm_step(state)
            if step is None or since == QUIET:
                self.result.rests += 1
                if wrong := self._world.violation_at_rest(state):
                    self._note(wrong, state)
                return
            after = self._apply(state, step)
            if after is None:
                return
            state = after
        self._note("it never comes to rest", state)

    def _depart(self, state: S, following: deque[S]) -> None:
        calm = self._world.calm_step(state)
        for step in self._world.steps(state):
            if step == calm:
                continue
            after = self._apply(state, step)
            if after is not None:
                following.append(after)

    def _apply(self, state: S, step: Step) -> S | None:
        """None: it was visited before, or is a violation."""
        after = self._world.apply(state, step)
        self.result.steps += 1
        if wrong := self._world.violation(state, step, after):
            self._note(wrong, state, step)
            return None
        if after in self._came:
            return None
        self._came[after] = state, step
        self.result.states += 1
        return after

    def _note(self, text: str, state: S, last: Step | None = None) -> None:
        trace = [last] if last is not None else []
        while (came := self._came[state]) is not None:
            state, step = came
            trace.append(step)
        self.result.violations.append(Violation(text, tuple(reversed(trace)), 1 << 30))

    def _is_over(self, begun: float) -> bool:
        result = self.result
        return (
            len(result.violations) >= self._most
            or result.states >= self._states
            or time.monotonic() - begun > self._seconds
        )

    def _ended(self, begun: float) -> Result:
        self.result.seconds = time.monotonic() - begun
        return self.result
