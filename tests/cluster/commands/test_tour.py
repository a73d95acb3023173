"""docs/tour.md, typed from a clean folder: each command prints what the page says. `make tour` writes the page."""

from pathlib import Path

import pytest
from tests.cluster.commands.tour import PAGE, start_tour
from tests.cluster.commands.tour_page import BadPage, Step, steps, written
from tests.docs.command_list import commands_of_test
from tests.machine import require

LINES = commands_of_test(__file__)


@pytest.mark.timeout(1800)  # a guard against hanging: each step has a limit of its own
def test_a_newcomers_tour_prints_what_the_page_says(binaries: Path) -> None:
    require("kubectl")
    typed = steps(PAGE.read_text())
    assert len(typed) > 15
    with start_tour(binaries, compare=True) as walk:
        for step in typed:
            walk.step(step)
        assert not list(walk.temporary.glob("muster-sandbox-*")), "the sandbox's folder is left behind"


def test_times_addresses_and_widths_may_differ_and_words_may_not() -> None:
    assert Step("c", "closed 5s ago, after 59s\n", 0, 1).says("closed 1m 5s ago, after 2h13m\n")
    step = Step("c", "sim-3  FAIL   12s  at 2026-11-22T01:07:18Z by 127.0.0.1:4\n", 0, 1)
    assert step.says("sim-3  FAIL  1m5s      at 2027-01-02T03:04:05Z by 127.0.0.1:65000")
    assert not step.says("sim-3  PASS   12s  at 2026-11-22T01:07:18Z by 127.0.0.1:4\n")
    assert not step.says("sim-3  FAIL   12s  at 2026-11-22T01:07:18Z by 127.0.0.1:4\nmore\n")
    assert not step.says("")


def test_what_varies_varies_only_as_the_page_allows() -> None:
    step = Step("c", "bound to sim-1\n", 0, 1, varies=(r"to (?!sim-3\b)\S+",))
    assert step.says("bound to sim-12\n")
    assert not step.says("bound to sim-3\n")


def test_a_page_is_written_anew_only_where_a_word_of_it_has_changed() -> None:
    page = "# Title\n```console\n$ a\nold 1s\n$ b\n$ c\nmore 3s\n```\nend\n"
    a, b, c = steps(page)
    assert (a.command, b.printed, c.first) == ("a", "", 6)
    assert written(page, {a: "old 2s\n", b: "", c: "more 4s\n"}) == page
    anew = "# Title\n```console\n$ a\nold 2s\n$ b\nnew\n$ c\nmore 4s\n```\nend\n"
    assert written(page, {a: "old 2s\n", b: "new\n", c: "more 4s\n"}) == anew


@pytest.mark.parametrize(
    ("page", "said"),
    [
        ("```console\nno command\n```\n", "line 2: a block begins with a command"),
        ("```console\n```\n", "line 2: a block without a command"),
        ("```console\n$ a\n", "ends within a block"),
        ("<!-- until: x -->\nwords\n", "line 2: expected ```console"),
    ],
)
def test_a_page_that_cannot_be_run_says_where(page: str, said: str) -> None:
    with pytest.raises(BadPage, match=said):
        steps(page)
