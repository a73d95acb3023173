"""A link that is down is a fault only where somebody uses it."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from muster_checks.base.counter_history import CounterSeries
from muster_checks.base.vocabulary import Verdict
from muster_checks.hardware.link_state import (
    GRACE_S,
    PortLink,
    describe_down_link,
    find_best_before,
    find_lone_odd,
    uptime_s,
)
from muster_checks.testing.recorded import lay_out, node

NOW = 100_000.0


def _link(name: str, *, up: bool = False, used: bool = False, wanted: bool = False, group: str = "x") -> PortLink:
    return PortLink(name=name, group=group, up=up, used=used, wanted=wanted)


def _seen(*values: tuple[float, float]) -> CounterSeries:
    return CounterSeries(values, tuple(0.0 for _ in values))


def _verdict(
    link: PortLink, others: Sequence[PortLink] = (), seen: CounterSeries | None = None, up_for_s: float | None = NOW
) -> Verdict | None:
    found = describe_down_link(link, [link, *others], seen, NOW, up_for_s)
    return found and found[0]


def test_a_link_that_is_up_is_no_fault() -> None:
    assert _verdict(_link("a", up=True)) is None


def test_a_port_nobody_uses_is_no_fault() -> None:
    assert _verdict(_link("a")) is None
    assert _verdict(_link("a"), [_link("b")]) is None


def test_a_port_that_was_in_use_fails() -> None:
    assert _verdict(_link("a", used=True)) is Verdict.FAIL
    assert _verdict(_link("a", used=True), up_for_s=None) is Verdict.FAIL


def test_a_port_that_must_be_up_fails_though_it_never_was() -> None:
    assert _verdict(_link("a", wanted=True)) is Verdict.FAIL


def test_links_take_their_time_at_boot() -> None:
    assert _verdict(_link("a", wanted=True), up_for_s=GRACE_S - 1) is Verdict.WARN


def test_a_link_lost_under_our_eyes_has_some_minutes_to_come_back() -> None:
    for lost_for, verdict in ((60.0, Verdict.WARN), (GRACE_S - 1, Verdict.WARN), (GRACE_S, Verdict.FAIL)):
        seen = _seen((NOW - lost_for, 1.0), (NOW - lost_for + 60, 0.0), (NOW, 0.0))
        assert _verdict(_link("a"), seen=seen) is verdict


def test_a_link_has_the_same_minutes_after_a_time_in_which_nobody_looked() -> None:
    assert _verdict(_link("a"), seen=_seen((NOW - 9000, 1.0), (NOW, 0.0))) is Verdict.WARN
    for seen_for, verdict in ((GRACE_S - 1, Verdict.WARN), (GRACE_S, Verdict.FAIL)):
        seen = _seen((NOW - 9000, 1.0), (NOW - seen_for, 0.0), (NOW, 0.0))
        assert _verdict(_link("a"), seen=seen) is verdict


def test_a_port_seen_down_all_along_was_not_seen_up() -> None:
    assert _verdict(_link("a"), seen=_seen((NOW - 9000, 0.0), (NOW, 0.0))) is None


@pytest.mark.parametrize(
    ("up", "down_", "verdict"),
    [
        (7, 0, Verdict.WARN),
        (3, 0, Verdict.WARN),
        (2, 0, Verdict.WARN),
        (5, 3, Verdict.WARN),
        (4, 3, None),
        (1, 0, None),
    ],
)
def test_a_port_that_never_had_a_link_warns_where_most_of_its_equals_have(
    up: int, down_: int, verdict: Verdict | None
) -> None:
    others = [_link(f"u{n}", up=True) for n in range(up)] + [_link(f"d{n}") for n in range(down_)]
    assert _verdict(_link("a"), others) is verdict


def test_ports_of_another_kind_say_nothing() -> None:
    assert _verdict(_link("a"), [_link(f"u{n}", up=True, group="y") for n in range(8)]) is None


def test_the_uptime_is_the_first_number(tmp_path: Path) -> None:
    assert uptime_s(node(tmp_path)) is None
    assert uptime_s(node(lay_out(tmp_path, {"/proc/uptime": "2042.33 3971.07"}))) == 2042.33
    assert uptime_s(node(lay_out(tmp_path, {"/proc/uptime": "soon"}))) is None


def test_what_was_better_before_is_remembered() -> None:
    seen = {"rate": _seen((1.0, 200.0), (2.0, 400.0), (3.0, 200.0))}
    assert find_best_before(seen, "rate", 200.0) == 400.0
    assert find_best_before(seen, "rate", 400.0) is None
    assert find_best_before({}, "rate", 1.0) is None


def test_one_that_differs_from_all_the_rest_stands_out_and_two_do_not() -> None:
    eight = {f"p{n}": 400.0 for n in range(7)}
    assert find_lone_odd(eight | {"odd": 200.0}, "odd") == 400.0
    assert find_lone_odd(eight | {"odd": 200.0}, "p0") is None
    assert find_lone_odd(eight | {"odd": 200.0, "odd2": 200.0}, "odd") is None
    assert find_lone_odd(eight | {"same": 400.0}, "same") is None
    assert find_lone_odd({"a": 1.0, "b": 1.0, "odd": 2.0}, "odd") is None
