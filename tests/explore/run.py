"""`make explore`: explores every scope, or the named ones, for a bounded time, and prints what was found."""

import argparse
import gc
import multiprocessing
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor, as_completed
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
    Where others took longer than their share, it is half an equal share, and all together last longer."""

    def __init__(self, scopes: int, jobs: int, seconds: float) -> None:
        self._lock, self._left = threading.Lock(), scopes
        self._jobs, self._ends = jobs, time.monotonic() + seconds
        self._least_s = seconds * min(1.0, jobs / scopes) / 2

    def take(self) -> float:
        with self._lock:
            left = self._left
            self._left -= 1
        return max(self._least_s, (self._ends - time.monotonic()) * min(1.0, self._jobs / left))


def _begin() -> None:
    quiet()
    gc.set_threshold(COLLECT_AFTER, 20, 100)


def explore_all(
    names: list[str], seconds: float, jobs: int, explore: Callable[[str, float], Explored] = explore
) -> Iterator[Explored]:
    """Each in a process of its own, so that the next one gets the memory back. Raises BrokenProcessPool if one is
    killed, by the kernel for want of memory for example."""
    share, context = _Share(len(names), jobs, seconds), multiprocessing.get_context("spawn")

    def explore_alone(name: str) -> Explored:
        with ProcessPoolExecutor(1, context, _begin) as process:
            return process.submit(explore, name, share.take()).result()

    threads = ThreadPoolExecutor(jobs)
    try:
        for each in as_completed([threads.submit(explore_alone, name) for name in names]):
            yield each.result()
    finally:
        threads.shutdown(cancel_futures=True)


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
