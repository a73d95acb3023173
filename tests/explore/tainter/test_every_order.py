"""A slice of every scope of the tainter; `make explore` visits more of each."""

import pytest
from tests.explore.explorer import Explorer
from tests.explore.tainter.scopes import SCOPES

STATES = 300


@pytest.mark.parametrize("name", SCOPES)
def test_every_state_is_sound_and_comes_to_rest(name: str) -> None:
    world = SCOPES[name]()
    try:
        result = Explorer(world, states=STATES).run()
    finally:
        world.end()
    assert not result.violations, "\n".join(map(str, result.violations))
    assert result.states == STATES or result.complete
