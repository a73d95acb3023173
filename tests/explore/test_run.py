"""`make explore` says what it has visited."""

import re

from tests.docs.command_list import commands_of_test
from tests.docs.command_runner import CommandRunner


def test_make_explore_prints_states_depth_time_and_violations() -> None:
    environ = {"ARGS": "--scope tainter/takeover --seconds 1"}
    typist = CommandRunner(commands_of_test(__file__), {}, environ)
    first, total = typist.type("make explore").splitlines()
    states, depth, violations = re.findall(r"([\d,]+) states \(.*depth (\d+).* (\d+) violations", first)[0]
    assert first.split()[0] == "tainter/takeover"
    assert int(states.replace(",", "")) > 0
    assert int(depth) > 0
    assert int(violations) == 0
    assert total.split()[:2] == ["tainter:", states]
    assert not typist.left
