"""The one scan over a line: which patterns, which groups, and its cost."""

import psutil
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from muster_checks.dmesg.catalogue.match import SET_INSTRUCTIONS, Matcher, Pattern


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


PIECES = ["a", "b", " ", ".", "[^a]", "[^ab]", r"\s", r"\S", r"\W", r"[[:space:]]", r"\C", r"\x61", r"\n"]
EDGES = ["^", "$", r"\A", r"\z", r"\b", r"\B", r"(?-m:^)", r"(?-m:$)", r"(?-im:$)", r"(?s-m:^)", r"(?i-sm)^", r"\\A"]
MARKS = ["*", "+", "?", "*?", "|", "(", ")", "(?:", "(?s)", "(?s:", "(?i)", "(?-m)", "(?i-m)", "(?U)", r"\Q", r"\E"]
PATTERNS = st.lists(st.sampled_from([*PIECES, *EDGES, *MARKS]), min_size=1, max_size=6).map("".join)


def _is_re2(pattern):
    try:
        Pattern(pattern)
    except ValueError:
        return False
    return True


@settings(deadline=None, max_examples=400)
@given(
    patterns=st.lists(PATTERNS.filter(_is_re2), min_size=1, max_size=2),
    lines=st.lists(st.text("abA\\ ", max_size=4).map(str.encode), min_size=1, max_size=5),
)
@example(patterns=[r"\Aa"], lines=[b"b", b"a"])
@example(patterns=[r"a\z"], lines=[b"a", b"b"])
@example(patterns=["(?-m)^a"], lines=[b"b", b"a"])
@example(patterns=["(?i-sm:a$)"], lines=[b"a", b"b"])
@example(patterns=[r"\Aa", "zzz"], lines=[b"b", b"a"])
@example(patterns=["(?-m)^$"], lines=[b"a", b"", b"a"])
def test_what_stands_in_a_line_is_of_interest_in_many_lines_together(patterns, lines):
    matcher = Matcher(patterns)
    assume(any(matcher.which(line) for line in lines))
    assert matcher.interesting(b"\n".join(lines))
    assert matcher.interesting(b"\n".join([line + b"\n" for line in lines]))


def test_many_lines_in_which_nothing_stands_are_of_no_interest(bench):
    lines = [b"usb 1-1: new high-speed USB device number 7", b"IPv6: ADDRCONF(NETDEV_CHANGE): link becomes ready"]
    assert not bench.judge.interesting(b"\n".join(lines * 16))
    assert not Matcher(["^c$", "d"]).interesting(b"a\nb\n")


def test_bytes_that_are_no_text_stop_no_pattern():
    assert Pattern("b(?P<x>.)").search("\ufffdbc".encode()) == {"x": "c"}
    assert Matcher(["a.*b"]).interesting(b"a\xff\xfeb")


def test_a_pattern_that_is_not_re2_is_told_in_re2_s_words():
    with pytest.raises(ValueError, match=r"^missing \): \($"):
        Pattern("(")


def test_the_shipped_patterns_leave_users_most_of_the_room(catalogue):
    patterns = [p for row in catalogue.rows for p in (*row.patterns, row.clear_pattern, row.context) if p]
    assert sum(Pattern(pattern).instructions for pattern in patterns) < SET_INSTRUCTIONS / 2


def _rss_kib():
    return psutil.Process().memory_info().rss // 1024


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
