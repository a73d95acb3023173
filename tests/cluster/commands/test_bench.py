"""`make bench` prints a table of what was measured. How fast it was is judged by whoever reads it."""

import re
from pathlib import Path

import pytest
from tests.docs.checkout import checkout
from tests.docs.command_list import commands_of_test
from tests.docs.command_runner import CommandRunner
from tests.machine import require


@pytest.mark.usefixtures("binaries")
def test_the_part_that_is_asked_for_is_measured_and_no_other(tmp_path: Path) -> None:
    require("/dev/kmsg")
    typist = CommandRunner(commands_of_test(__file__), {}, {"ARGS": "--only fleet"}, checkout(tmp_path / "muster"))
    head, well, sick = typist.type("make bench").strip().splitlines()
    assert re.match(r"200 agents through one +questions +median s +most s +answers$", head)
    # a machine that has other work may let an agent wait too long
    assert re.match(r"all well +\d+ +[\d.]+ +[\d.]+ +\d+ PASS", well)
    assert re.match(r"5 dead and 5 silent +1 +[\d.]+ +[\d.]+ +\d+ PASS, \d+ UNKNOWN$", sick)
    assert not typist.left
