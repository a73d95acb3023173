"""A list from a cache that is behind: it lacks the last change of its collection, and the watch delivers that."""

from typing import Any

from tests.explore.api_server import NODES
from tests.explore.cluster_world import State
from tests.explore.tainter.state import Scope
from tests.explore.tainter.world import TainterWorld

SCOPE = Scope(nodes=("n1",), failing=("n1",), leaders=1, crash=1, old=1)


def _take(world: TainterWorld, state: State, *what: Any) -> State:
    step = next(step for step in world.steps(world.pack(state)) if step.what == what)
    return world.step(state, step)


def _requests(world: TainterWorld, state: State) -> list[tuple[str, str]]:
    return [(each.method, each.path) for each in world.view(state, "A").requests]


def test_a_list_may_come_from_before_the_last_change_of_its_collection() -> None:
    world = TainterWorld(SCOPE)
    try:
        state = world.first_state()
        for what in ("serve", "answer"):  # of what a new leader reads first
            state = _take(world, state, "A", what, 0)
        tainted = _take(world, state, "A", "serve", _requests(world, state).index(("PATCH", f"{NODES}/n1")))
        assert world.tainted(tainted.server) == ["n1"]
        state = _take(world, tainted, "A", "crash")
        at = _requests(world, state).index(("GET", NODES))
        fresh, old = _take(world, state, "A", "serve", at), _take(world, state, "A", "old", at)
        assert b"muster.dev/faulty" in fresh.links[0].answers[at].body
        assert b"muster.dev/faulty" not in old.links[0].answers[at].body
        assert old.server == tainted.server
        assert not dict(fresh.links[0].queues)[NODES]
        (missed,) = dict(old.links[0].queues)[NODES]
        assert b"muster.dev/faulty" in missed.line
        # once was allowed
        assert not any(step.what[:2] == ("A", "old") for step in world.steps(world.pack(old)))
    finally:
        world.end()
