"""`make explore` says what it has visited."""

import os
import re
import signal
import time
from concurrent.futures.process import BrokenProcessPool

import pytest
from tests.docs.command_list import commands_of_test
from tests.docs.command_runner import CommandRunner
from tests.explore.run import Explored, explore_all


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


def _explore(name: str, _seconds: float) -> Explored:
    if name == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    return Explored(name, f"process {os.getpid()}", 1, 0)


def test_each_scope_has_a_process_of_its_own() -> None:
    found = list(explore_all(["one", "two"], 60.0, 1, _explore))
    assert sorted(each.name for each in found) == ["one", "two"]
    assert len({each.text for each in found} | {f"process {os.getpid()}"}) == 3


def test_a_scope_whose_process_is_killed_is_an_error_and_no_hang() -> None:
    with pytest.raises(BrokenProcessPool):
        list(explore_all(["killed", "next"], 60.0, 1, _explore))


def _explore_late(name: str, seconds: float) -> Explored:
    time.sleep(0.5 if name == "late" else 0.0)
    return Explored(name, str(seconds), 1, 0)


def test_a_scope_that_takes_longer_leaves_the_others_half_their_share() -> None:
    late, following = explore_all(["late", "next"], 0.4, 1, _explore_late)
    assert late.name == "late"
    assert float(following.text) == 0.1
