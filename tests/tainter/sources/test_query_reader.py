"""Each line of a query once, whatever comes late, twice, out of order or not at all for a while."""

import json
import random
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.tainter.sources.loki_stub import BadQuery, Store

from muster_tainter.sources.http_client import NS, AnswerTooLarge, SourceError
from muster_tainter.sources.loki.client import LokiPage
from muster_tainter.sources.loki.query_reader import QueryReader, ReadWindow
from muster_tainter.sources.loki.response import LogEntry, decode_response

QUERY = '{job="dmesg"}'
START = 1_700_000_000
OVERLAP = 60 * NS


class Loki:
    """The stub's store, asked without HTTP. fails: raised instead of answers, in this order."""

    def __init__(self) -> None:
        self.time = float(START)
        self.store = Store(clock=lambda: self.time)
        self.fails: list[Exception | None] = []
        self.asked = 0

    def now_ns(self) -> int:
        return int(self.time * NS)

    def push(self, line: str, at: float | None = None, node: str = "n1") -> None:
        self.store.push(line, None if at is None else int(at * NS), job="dmesg", node=node)

    async def ask(self, query: str, start_ns: int, end_ns: int, limit: int) -> LokiPage:
        self.asked += 1
        failure = self.fails.pop(0) if self.fails else None
        if failure is not None:
            raise failure
        parameters = {"query": query, "start": start_ns, "end": end_ns, "limit": limit, "direction": "forward"}
        try:
            body = json.dumps(self.store.query({name: str(value) for name, value in parameters.items()}))
        except BadQuery as error:
            raise AnswerTooLarge(str(error), self.store.most) from error
        entries, malformed = decode_response(body.encode())
        return LokiPage(entries, malformed, self.now_ns())


class Taken:
    def __init__(self) -> None:
        self.lines: list[str] = []
        self.fail_at: int | None = None

    async def __call__(self, entries: Sequence[LogEntry]) -> None:
        if self.fail_at is not None and len(self.lines) >= self.fail_at:
            self.fail_at = None
            raise SourceError("the pod's node could not be asked for")
        self.lines += [entry.line for entry in entries]


def reading(
    loki: Loki,
    *,
    led_until: float | None = START,
    lookback_s: int = 3600,
    page: int = 5000,
    seen: int = 100_000,
) -> QueryReader:
    lived = None if led_until is None else int(led_until * NS)
    window = ReadWindow.begin(loki.now_ns(), OVERLAP, lookback_s * NS, lived)
    return QueryReader(QUERY, window, OVERLAP, apart="node", page_lines=page, seen_limit=seen)


def everything(_entry: LogEntry) -> bool:
    return True


@pytest.fixture
def loki() -> Loki:
    return Loki()


@pytest.fixture
def taken() -> Taken:
    return Taken()


async def test_a_line_is_taken_once_however_often_it_is_asked_for(loki: Loki, taken: Taken) -> None:
    read = reading(loki)
    for i in range(5):
        loki.push(f"line {i}")
        for _ in range(3):
            await read.turn(loki, everything, taken)
        loki.time += 5
    assert taken.lines == [f"line {i}" for i in range(5)]


async def test_a_line_that_reaches_loki_late_is_taken(loki: Loki, taken: Taken) -> None:
    read = reading(loki)
    for _ in range(20):
        await read.turn(loki, everything, taken)
        loki.time += 5
        loki.push("on time")
    loki.push("late", at=loki.time - 50)
    await read.turn(loki, everything, taken)
    assert taken.lines.count("late") == 1


async def test_lines_out_of_order_are_taken_in_the_order_of_their_times(loki: Loki, taken: Taken) -> None:
    for at in (7, 3, 9, 1):
        loki.push(str(at), at=START - 10 + at)
    await reading(loki).turn(loki, everything, taken)
    assert taken.lines == ["1", "3", "7", "9"]


async def test_the_same_text_in_another_stream_or_at_another_time_is_another_line(loki: Loki, taken: Taken) -> None:
    read = reading(loki)
    loki.push("same", at=START, node="n1")
    loki.push("same", at=START, node="n2")
    loki.push("same", at=START + 1e-3, node="n1")
    await read.turn(loki, everything, taken)
    assert taken.lines == ["same"] * 3


async def test_full_pages_are_followed_to_the_end(loki: Loki, taken: Taken) -> None:
    for i in range(95):
        loki.push(f"line {i}", at=START - 30 + i * 0.1)
    await reading(loki, page=10).turn(loki, everything, taken)
    assert taken.lines == [f"line {i}" for i in range(95)]


async def test_lines_of_one_nanosecond_that_stand_on_both_sides_of_a_page_are_all_taken(
    loki: Loki, taken: Taken
) -> None:
    for i in range(4):
        loki.push(f"before {i}", at=START - 5 + i * 0.1)
    for i in range(9):
        loki.push(f"crowd {i:02}", at=START - 1, node=f"n{i:02}")
    loki.push("after", at=START)
    await reading(loki, page=10).turn(loki, everything, taken)
    assert sorted(taken.lines) == sorted(
        [f"before {i}" for i in range(4)] + [f"crowd {i:02}" for i in range(9)] + ["after"]
    )


async def test_a_crowd_of_one_nanosecond_larger_than_a_page_is_read_node_by_node(loki: Loki, taken: Taken) -> None:
    for i in range(70):
        loki.push(f"crowd {i:02}", at=START - 1, node=f"n{i % 23:02}.example")
    loki.push("after", at=START)
    read = reading(loki, page=10)
    await read.turn(loki, everything, taken)
    assert len(taken.lines) == len(set(taken.lines)) == 71
    assert read.counts.lost == 0


async def test_a_crowd_that_cannot_be_read_whole_is_said_and_holds_up_nothing(
    loki: Loki, taken: Taken, caplog: pytest.LogCaptureFixture
) -> None:
    for i in range(50):
        loki.push(f"crowd {i:02}", at=START - 1)
    loki.push("after", at=START)
    read = reading(loki, page=10)
    await read.turn(loki, everything, taken)
    assert "after" in taken.lines
    assert read.counts.lost == 1
    [record] = caplog.records
    assert (record.levelname, str(int(START - 1)) in record.getMessage()) == ("ERROR", True)


async def test_loki_away_for_minutes_costs_no_line(loki: Loki, taken: Taken) -> None:
    read = reading(loki)
    await read.turn(loki, everything, taken)
    for i in range(240):  # two hours: longer than the lookback
        loki.time += 30
        loki.push(f"line {i}")
        loki.fails = [SourceError("connection refused")]
        with pytest.raises(SourceError):
            await read.turn(loki, everything, taken)
    await read.turn(loki, everything, taken)
    assert taken.lines == [f"line {i}" for i in range(240)]


async def test_loki_that_fails_in_the_middle_of_a_backlog_is_gone_on_with_from_there(loki: Loki, taken: Taken) -> None:
    for i in range(100):
        loki.push(f"line {i}", at=START - 50 + i * 0.1)
    read = reading(loki, page=10)
    failures = 0
    for _ in range(40):
        loki.fails = [None, None, SourceError("504")]
        try:
            await read.turn(loki, everything, taken)
        except SourceError:
            failures += 1
        else:
            break
    assert failures > 2
    assert taken.lines == [f"line {i}" for i in range(100)]


async def test_what_could_not_be_dealt_with_comes_again(loki: Loki, taken: Taken) -> None:
    for i in range(30):
        loki.push(f"line {i}", at=START - 50 + i)
    read = reading(loki, page=10)
    taken.fail_at = 10
    with pytest.raises(SourceError):
        await read.turn(loki, everything, taken)
    await read.turn(loki, everything, taken)
    assert taken.lines == [f"line {i}" for i in range(30)]


async def test_a_new_leader_goes_on_where_the_last_one_lived(loki: Loki, taken: Taken) -> None:
    loki.push("before the overlap", at=START - 1800 - 61)
    loki.push("in the overlap", at=START - 1800 - 59)
    loki.push("while nobody led", at=START - 900)
    await reading(loki, led_until=START - 1800).turn(loki, everything, taken)
    assert taken.lines == ["in the overlap", "while nobody led"]


@pytest.mark.parametrize("led_until", [None, START - 86_400.0])
async def test_a_first_start_and_one_long_after_read_as_far_back_as_allowed(
    loki: Loki, taken: Taken, led_until: float | None
) -> None:
    loki.push("too old", at=START - 3601)
    loki.push("old", at=START - 3599)
    await reading(loki, led_until=led_until).turn(loki, everything, taken)
    assert taken.lines == ["old"]


async def test_a_last_leader_whose_clock_was_ahead_hides_no_line(loki: Loki, taken: Taken) -> None:
    read = reading(loki, led_until=START + 7200)
    loki.time += 5
    loki.push("new")
    await read.turn(loki, everything, taken)
    assert taken.lines == ["new"]


async def test_nodes_whose_clocks_are_five_minutes_behind_are_read(loki: Loki, taken: Taken) -> None:
    read = reading(loki)
    for i in range(100):
        await read.turn(loki, everything, taken)
        loki.time += 5
        loki.push(f"line {i}", at=loki.time - 300)
    await read.turn(loki, everything, taken)
    since = [f"line {i}" for i in range(100) if START + 5 * (i + 1) - 300 >= START - 60]
    assert taken.lines == since
    assert len(since) > 50


async def test_lines_from_the_future_are_read_and_hide_none_of_the_present(loki: Loki, taken: Taken) -> None:
    read = reading(loki)
    loki.push("from the future", at=START + 300)
    await read.turn(loki, everything, taken)
    loki.time += 5
    loki.push("of now")
    await read.turn(loki, everything, taken)
    assert taken.lines == ["from the future", "of now"]


async def test_a_silent_stream_is_not_asked_about_for_ever_further_back(loki: Loki, taken: Taken) -> None:
    read = reading(loki)
    for _ in range(1000):
        await read.turn(loki, everything, taken)
        loki.time += 5
    assert int(loki.store.asked[-1]["start"]) >= loki.now_ns() - 700 * NS


async def test_a_lower_limit_of_loki_s_is_learned(loki: Loki, taken: Taken) -> None:
    loki.store.most = 7
    for i in range(50):
        loki.push(f"line {i}", at=START - 50 + i)
    read = reading(loki)
    await read.turn(loki, everything, taken)
    refused = sum(int(asked["limit"]) > 7 for asked in loki.store.asked)
    await read.turn(loki, everything, taken)
    assert len(taken.lines) == 50
    assert sum(int(asked["limit"]) > 7 for asked in loki.store.asked) == refused == 1


async def test_answers_that_would_be_too_large_are_asked_for_in_smaller_ones(loki: Loki, taken: Taken) -> None:
    for i in range(50):
        loki.push(f"line {i}", at=START - 50 + i)
    loki.fails = [AnswerTooLarge("an answer of more than 33554432 bytes")] * 9
    await reading(loki).turn(loki, everything, taken)
    assert len(taken.lines) == 50
    assert int(loki.store.asked[0]["limit"]) == 5000 >> 9


async def test_what_does_not_matter_is_neither_taken_nor_remembered(loki: Loki, taken: Taken) -> None:
    for i in range(100):
        loki.push(f"line {i}", at=START - 50 + i * 0.1)
    read = reading(loki)
    await read.turn(loki, lambda entry: entry.line.endswith("7"), taken)
    assert len(taken.lines) == 10
    assert len(read._seen) == 10


async def test_a_flood_is_remembered_up_to_a_bound_and_no_line_is_taken_twice(loki: Loki, taken: Taken) -> None:
    read = reading(loki, page=20, seen=50)
    for i in range(300):
        loki.push(f"line {i}", at=START - 30 + i * 0.05)
    for i in range(300, 400):
        await read.turn(loki, everything, taken)
        loki.time += 1
        loki.push(f"line {i}")
    await read.turn(loki, everything, taken)
    assert taken.lines == [f"line {i}" for i in range(400)]
    assert len(read._seen) <= 50


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    page=st.integers(4, 12),
    late_s=st.integers(0, 35),
    failing=st.sampled_from([0.0, 0.2, 0.6]),
)
async def test_every_line_is_taken_once_over_any_history(seed: int, page: int, late_s: int, failing: float) -> None:
    """Late by less than the overlap (a step takes up to 20 s), in bursts and crowds, with failures anywhere."""
    rng = random.Random(seed)
    loki, taken = Loki(), Taken()
    read = reading(loki, page=page)
    pushed: list[str] = []
    crowds: dict[tuple[int, str], list[str]] = {}
    arriving: list[tuple[float, str, float, str]] = []
    for step in range(30):
        loki.time += rng.choice([0.0, 1.0, 5.0, 5.0, 20.0])
        for i in range(rng.choice([0, 0, 1, 2, 7])):
            name = f"{step}.{i}"
            # crowds of one time over several nodes; of one node no more than a page holds
            second, node = int(loki.time), f"n{rng.randrange(5)}"
            crowd = crowds.setdefault((second, node), [])
            at = second + (len(crowd) // 3 * 1e-3 if rng.random() < 0.5 else rng.random())
            crowd.append(name)
            arriving.append((loki.time + rng.uniform(0, late_s), name, at, node))
        for due, name, at, node in [one for one in arriving if one[0] <= loki.time]:
            arriving.remove((due, name, at, node))
            loki.push(name, at=at, node=node)
            pushed.append(name)
        loki.fails = [SourceError("503") if rng.random() < failing else None for _ in range(4)]
        if rng.random() < 0.3:
            taken.fail_at = len(taken.lines)
        try:
            await read.turn(loki, everything, taken)
        except SourceError:
            continue
    loki.fails, taken.fail_at = [], None
    await read.turn(loki, everything, taken)  # the rest of one that was cut short; what came late meanwhile is next
    await read.turn(loki, everything, taken)
    assert sorted(taken.lines) == sorted(pushed)
