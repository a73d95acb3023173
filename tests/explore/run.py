"""`make explore`: explores every scope, or the named ones, for a bounded time, and prints what was found."""

import argparse
import gc
import sys
from collections.abc import Callable, Mapping
from typing import Any

from tests.explore import breadth
from tests.explore.breadth import BreadthExplorer
from tests.explore.explorer import Explorer, Result, World, shortest
from tests.explore.ipujob.scopes import SCOPES as IPUJOB
from tests.explore.ipujob.world import IPUJobWorld
from tests.explore.process import quiet
from tests.explore.tainter.scopes import SCOPES as TAINTER

PARTS: Mapping[str, Mapping[str, Callable[[], World[Any]]]] = {"tainter": TAINTER, "ipujob": IPUJOB}

SHALLOW = 8  # steps: depth first finds what needs few steps late


def explore(name: str, world: World[Any], seconds: float) -> Result | breadth.Result:
    """A quarter of the time for short traces, the rest for all. Prints one line, and the shortest trace of a
    violation."""
    gc.collect()
    if isinstance(world, IPUJobWorld):  # its search has short traces first, anyway
        visited = BreadthExplorer(world, seconds=seconds).run()
        print(f"{name:24} {visited}", *visited.violations, sep="\n", flush=True)
        world.end()
        return visited
    first = Explorer(world, depth=SHALLOW, seconds=seconds / 4).run()
    result = Explorer(world, seconds=seconds - first.seconds).run()
    print(f"{name:24} {result}; {first.states:,} states with short traces", flush=True)
    result.seconds += first.seconds
    result.violations += first.violations
    for found in result.violations:
        print(shortest(world, found), flush=True)
    world.end()
    return result


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0, help="for all scopes together")
    parser.add_argument("--scope", action="append", default=[], help="PART or PART/SCOPE; default: all")
    parser.add_argument("--least", type=int, default=0, help="fail if fewer states than this were visited in all")
    given = parser.parse_args()
    quiet()
    names = {f"{part}/{scope}": make for part, scopes in PARTS.items() for scope, make in scopes.items()}
    wanted = {name: make for name, make in names.items()
              if not given.scope or name in given.scope or name.partition("/")[0] in given.scope}  # fmt: skip
    unknown = set(given.scope) - set(names) - set(PARTS)
    if unknown:
        parser.error(f"--scope: {', '.join(sorted(unknown))}: choose from {', '.join([*PARTS, *names])}")
    left = given.seconds
    results = []
    for done, (name, make) in enumerate(wanted.items()):
        results.append(explore(name, make(), left / (len(wanted) - done)))
        left -= results[-1].seconds
    states, broken = sum(each.states for each in results), sum(len(each.violations) for each in results)
    print(f"{states:,} distinct states, {sum(each.seconds for each in results):.0f} s, {broken} violations")
    if states < given.least:
        print(f"fewer than {given.least:,} states", file=sys.stderr)
    return 1 if broken or states < given.least else 0


if __name__ == "__main__":
    sys.exit(main())
