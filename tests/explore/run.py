"""`make explore`: explores every scope, or the named ones, for a bounded time, and prints what was found."""

import argparse
import gc
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from tests.explore.breadth import BreadthExplorer
from tests.explore.explorer import Explorer, World, shortest
from tests.explore.ipujob.scopes import SCOPES as IPUJOB
from tests.explore.ipujob.world import IPUJobWorld
from tests.explore.process import quiet
from tests.explore.tainter.scopes import SCOPES as TAINTER

PARTS: Mapping[str, Mapping[str, Callable[[], World[Any]]]] = {"tainter": TAINTER, "ipujob": IPUJOB}
WORLDS = {f"{part}/{scope}": make for part, scopes in PARTS.items() for scope, make in scopes.items()}

SHALLOW = 8  # steps: depth first finds what needs few steps late
COLLECT_AFTER = 200_000  # allocations: nearly all that is allocated stays


class Explored(NamedTuple):
    """text: what is printed about it. violations: their number."""

    name: str
    text: str
    states: int
    violations: int


def explore(name: str, seconds: float) -> Explored:
    """A quarter of the time for short traces, the rest for all. The text has the shortest trace of a violation, too."""
    world = WORLDS[name]()
    if isinstance(world, IPUJobWorld):  # its search has short traces first, anyway
        visited = BreadthExplorer(world, seconds=seconds).run()
        text, states, violations = str(visited), visited.states, visited.violations
    else:
        first = Explorer(world, depth=SHALLOW, seconds=seconds / 4).run()
        result = Explorer(world, seconds=seconds - first.seconds).run()
        text, states = f"{result}; {first.states:,} states with short traces", result.states
        violations = [shortest(world, each) for each in (*first.violations, *result.violations)]
    world.end()
    return Explored(name, "\n".join((f"{name:24} {text}", *map(str, violations))), states, len(violations))


class _Share:
    """Of the time, what each scope gets: as much as each that has not begun; what one does not use is the others'.

    Inherited by the processes that explore, ``jobs`` at a time.
    """

    def __init__(self, scopes: int, jobs: int, seconds: float) -> None:
        self._left = multiprocessing.Value("i", scopes)
        self._jobs, self._ends = jobs, time.monotonic() + seconds

    def take(self) -> float:
        with self._left.get_lock():
            left = self._left.value
            self._left.value -= 1
        return (self._ends - time.monotonic()) * min(1.0, self._jobs / left)


_share: _Share  # of a process that explores


def _begin(share: _Share) -> None:
    global _share
    _share = share
    quiet()
    gc.set_threshold(COLLECT_AFTER, 20, 100)


def _explore_share(name: str) -> Explored:
    return explore(name, _share.take())


def explore_all(names: list[str], seconds: float, jobs: int) -> Iterator[Explored]:
    """Each in a process of its own, so that the next one gets the memory back."""
    context = multiprocessing.get_context("fork")
    with context.Pool(jobs, _begin, (_Share(len(names), jobs, seconds),), maxtasksperchild=1) as pool:
        yield from pool.imap_unordered(_explore_share, names)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, prog="make explore")
    parser.add_argument("--seconds", type=float, default=600.0, help="for all scopes together")
    parser.add_argument("--scope", action="append", default=[], help="PART or PART/SCOPE; default: all")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="scopes at a time; default: one a core")
    given = parser.parse_args()
    unknown = set(given.scope) - set(WORLDS) - set(PARTS)
    if unknown:
        parser.error(f"--scope: {', '.join(sorted(unknown))}: choose from {', '.join([*PARTS, *WORLDS])}")
    wanted = [name for name in WORLDS if not given.scope or {name, name.partition("/")[0]} & set(given.scope)]
    results = []
    for each in explore_all(wanted, given.seconds, given.jobs):
        print(each.text, flush=True)
        results.append(each)
    for part in PARTS:
        found = [each for each in results if each.name.startswith(f"{part}/")]
        if found:
            states, broken = sum(each.states for each in found), sum(each.violations for each in found)
            print(f"{part}: {states:,} distinct states in {len(found)} scopes, {broken} violations")
    return int(any(each.violations for each in results))


if __name__ == "__main__":
    sys.exit(main())
