"""The one scan over a line: which patterns, which groups, and its cost."""

import os
import time
from pathlib import Path

import pytest

from muster_checks.dmesg.match import SET_INSTRUCTIONS, Matcher, Pattern


def test_a_matcher_says_which_patterns_stand_in_a_text():
    matcher = Matcher(["b+", "^c", "never", r"(?P<x>\d)(?P<y>z)?"])
    assert matcher.which(b"a b 1") == [0, 3]
    assert matcher.which(b"a\nc") == [1]
    assert matcher.which(b"a") == []
    assert matcher.groups(3, b"a 1") == {"x": "1"}
    assert matcher.groups(3, b"a") == {}


def test_a_matcher_without_patterns_finds_nothing():
    assert Matcher([]).which(b"x") == []
    assert not Matcher([]).interesting(b"x")


@pytest.mark.parametrize("raw", [rb"a\x0ab", "\N{LATIN SMALL LETTER E WITH ACUTE}".encode(), b"\xff"])
def test_text_that_may_look_different_later_is_of_interest(raw):
    assert Matcher(["zzz"]).interesting(raw)


def test_bytes_that_are_no_text_stop_no_pattern():
    assert Pattern("b(?P<x>.)").search("\ufffdbc".encode()) == {"x": "c"}
    assert Matcher(["a.*b"]).interesting(b"a\xff\xfeb")


def test_a_pattern_that_is_not_re2_is_told_in_re2_s_words():
    with pytest.raises(ValueError, match=r"^missing \): \($"):
        Pattern("(")


def test_the_shipped_patterns_leave_users_most_of_the_room(catalogue):
    patterns = [p for row in catalogue.rows for p in (*row.patterns, row.clear_pattern, row.context) if p]
    assert sum(Pattern(pattern).instructions for pattern in patterns) < SET_INSTRUCTIONS / 2


def _us_a_line(call, items):
    begin = time.perf_counter()
    for item in items:
        call(item)
    return (time.perf_counter() - begin) / len(items) * 1e6


def _rss_kib():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 1024


def test_speed_of_ordinary_lines_and_of_a_flood(bench, samples, record_property):
    """Prints; asserts only ten times the figure, as a guard against a pattern that has become slow."""
    boring = [r.split(b";", 1)[1] for r in (samples / "kmsg.1.log").read_bytes().splitlines()] * 500
    flood = [f"NVRM: Xid (PCI:0000:b3:00): 31, pid={n}, name=python, Ch 00000008" for n in range(20_000)]
    bench.judge.interesting(boring[0])
    bench.feed(flood[0])
    figures = {
        "ordinary line, us": _us_a_line(bench.judge.interesting, boring),
        "Xid in a flood, us": _us_a_line(bench.feed, flood),
        "Xid of interest, us": _us_a_line(bench.judge.interesting, [text.encode() for text in flood]),
    }
    for name, figure in figures.items():
        record_property(name, round(figure, 2))
        print(f"{name}: {figure:.2f}")
    assert figures["ordinary line, us"] < 20
    assert figures["Xid in a flood, us"] < 1000


def test_matching_anything_at_all_takes_bounded_memory(bench):
    before = _rss_kib()
    seed = 1
    for _ in range(3000):
        seed = seed * 6364136223846793005 % 2**64
        words = [
            "NVRM: ",
            "mlx5_core 0000:3b:00.0",
            "EXT4-fs ",
            "AER: ",
            "BTRFS ",
            "XFS (",
            "md/",
            "task ",
            "nvme nvme0: ",
        ]
        text = "".join(words[seed >> shift & 7] + str(seed >> shift & 1023) for shift in range(0, 60, 3))
        bench.judge.interesting(text.encode())
    assert _rss_kib() - before < 8 * 1024
