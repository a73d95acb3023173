"""The explorer finds defects that are planted, and nothing on the same way without them."""

import pytest
from tests.explore.explorer import Violation, find, replay
from tests.explore.tainter.planted import PLANTED, Planted


def _found(planted: Planted) -> Violation:
    with planted.plant():
        world = planted.world()
        try:
            found = find(world)
            assert found is not None, "not found"
            assert replay(world, found.trace)[1] == found.text
        finally:
            world.end()
    return found


@pytest.mark.parametrize("name", PLANTED)
def test_planted_defect_is_found(name: str) -> None:
    planted = PLANTED[name]
    found = _found(planted)
    assert planted.says in found.text
    world = planted.world()
    try:
        assert replay(world, found.trace, strict=False)[1] == ""
    finally:
        world.end()
