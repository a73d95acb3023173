import asyncio
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from muster_checks.dmesg.sources.file import LINE_BYTES, FilePlace, FileSource
from muster_checks.dmesg.sources.source import LINES_PER_TURN
from muster_checks.dmesg.sources.text_formats import TextReader
from muster_checks.dmesg.sources.timeline import Timeline
from muster_checks.dmesg.stream import KernelLogStream


class Follower:
    """A source on a file, read by hand."""

    def __init__(self, path: Path, timeline: Timeline, place: FilePlace | None = None, complete: bool = False) -> None:
        self.path, self.timeline = path, timeline
        reader = TextReader(timeline, lambda _: True)
        self.source = FileSource(path, reader, place or FilePlace(), complete=complete)

    def read(self) -> list[str]:
        texts = []
        for _ in range(1000):
            batch = self.source.read()
            texts += [line.text for line in batch.lines]
            if not batch.more:
                return texts
        raise AssertionError("no end")

    def restart(self) -> "Follower":
        place = msgspec.json.decode(self.source.place(), type=FilePlace)
        self.source.close()
        return Follower(self.path, self.timeline, place)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log" / "kern.log"


@pytest.fixture
def follow(log: Path, timeline: Timeline) -> Any:
    log.parent.mkdir()
    made: list[Follower] = []

    def make(*arguments: Any, **options: Any) -> Follower:
        made.append(Follower(log, timeline, *arguments, **options))
        return made[-1]

    yield make
    for follower in made:
        follower.source.close()


def append(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


def test_lines_are_read_once(log: Path, follow: Any) -> None:
    append(log, "one\ntwo\n")
    follower = follow()
    assert follower.read() == ["one", "two"]
    append(log, "three\n")
    assert follower.read() == ["three"]
    assert follower.read() == []


def test_the_time_of_reading_is_that_of_a_line_read_while_it_is_written(log: Path, follow: Any) -> None:
    append(log, "old\n")
    follower = follow()
    timed = []
    for text in ("new\n", "newer\n"):
        timed += [line.timed for line in follower.source.read().lines]
        append(log, text)
    timed += [line.timed for line in follower.source.read().lines]
    assert timed == [False, True, True]
    append(log, "meanwhile\n")
    again = follower.restart()
    assert [line.timed for line in again.source.read().lines] == [False]
    again.source.close()


def test_a_long_file_is_read_in_turns_to_its_end(log: Path, follow: Any) -> None:
    append(log, "".join(f"{n}\n" for n in range(5 * LINES_PER_TURN)))
    assert follow().read() == [str(n) for n in range(5 * LINES_PER_TURN)]


def test_a_half_line_waits_for_its_other_half(log: Path, follow: Any) -> None:
    append(log, "one\ntw")
    follower = follow()
    assert follower.read() == ["one"]
    again = follower.restart()
    append(log, "o\n")
    assert again.read() == ["two"]
    again.source.close()


def test_the_last_line_of_a_complete_file_needs_no_newline(log: Path, follow: Any) -> None:
    append(log, "one\ntwo")
    follower = follow(complete=True)
    assert follower.read() == ["one", "two"]
    assert follower.read() == []


def test_a_restart_reads_each_line_once(log: Path, follow: Any) -> None:
    append(log, "".join(f"{n}\n" for n in range(LINES_PER_TURN + 10)))
    follower = follow()
    first = [line.text for line in follower.source.read().lines]
    again = follower.restart()
    assert first + again.read() == [str(n) for n in range(LINES_PER_TURN + 10)]
    again.source.close()


def test_a_rotated_file_is_read_to_its_end_and_then_its_successor(log: Path, follow: Any) -> None:
    append(log, "one\n")
    follower = follow()
    follower.read()
    rotated = log.with_suffix(".1")
    log.rename(rotated)
    append(rotated, "two\n")
    log.touch()
    assert follower.read() == ["two"]
    append(rotated, "three\nhalf")  # the logger has not been told yet
    assert follower.read() == ["three"]
    append(log, "four\n")
    assert follower.read() == ["half", "four"]
    append(log, "five\n")
    assert follower.read() == ["five"]


def test_a_file_rotated_while_the_agent_was_away_is_read_on(log: Path, follow: Any) -> None:
    append(log, "one\n")
    follower = follow()
    follower.read()
    append(log, "two\n")
    log.rename(log.with_suffix(".1"))
    append(log, "three\n")
    again = follower.restart()
    assert again.read() == ["two", "three"]
    again.source.close()


def test_another_file_that_took_over_the_inode_is_not_read(log: Path, follow: Any) -> None:
    append(log, "one\n")
    stranger = log.parent / "stranger"
    stranger.write_text("no kernel log\n")
    place = FilePlace(inode=stranger.stat().st_ino, offset=4, before=b"one\n")
    assert follow(place).read() == ["one"]


def test_an_emptied_file_is_read_from_its_beginning(log: Path, follow: Any) -> None:
    append(log, "one\ntwo\n")
    follower = follow()
    follower.read()
    os.truncate(log, 0)
    assert follower.read() == []
    append(log, "three\n")
    assert follower.read() == ["three"]


def test_a_file_that_was_emptied_and_has_grown_beyond_the_place_again_is_noticed(log: Path, follow: Any) -> None:
    append(log, "one\n")
    follower = follow()
    follower.read()
    log.write_text("two\nthree\n")
    assert follower.read() == ["two", "three"]


def test_a_missing_file_is_read_as_soon_as_it_is_there(log: Path, follow: Any) -> None:
    log.parent.rmdir()
    follower = follow(FilePlace(skipping=True))
    assert follower.read() == []
    assert str(log) in follower.source.health()
    log.parent.mkdir()
    append(log, "one\n")
    assert follower.read() == ["one"]
    assert follower.source.health() == ""


def test_from_now_on_means_no_backlog(log: Path, follow: Any) -> None:
    append(log, "old\nhalf of an ")
    follower = follow(FilePlace(skipping=True))
    assert follower.read() == []
    append(log, "old one\nnew\n")
    assert follower.read() == ["new"]


@pytest.mark.parametrize("newline", [True, False])
def test_an_overlong_line_is_cut_and_the_next_one_is_whole(newline: bool, log: Path, follow: Any) -> None:
    append(log, "x" * (3 * LINE_BYTES))
    follower = follow()
    early = [] if newline else follower.read()
    append(log, "y\nnext\n")
    texts = early + follower.read()
    assert texts[1:] == ["next"]
    assert set(texts[0]) == {"x"}
    assert LINE_BYTES <= len(texts[0]) <= 2 * LINE_BYTES
    assert follower.source.counts.overlong == 1


def test_a_folder_is_no_log(log: Path, follow: Any) -> None:
    log.mkdir()
    follower = follow()
    assert follower.read() == []
    assert str(log) in follower.source.health()


async def test_inotify_wakes_the_stream(log: Path, timeline: Timeline, echo: Any) -> None:
    """Through absence, creation, growth and rotation, with nothing looking at the file in between."""
    judge = echo()
    source = FileSource(log, TextReader(timeline, lambda _: True), FilePlace())
    events: Any = KernelLogStream(source, judge, timeline, boot_id="b", source_name="file").events()

    async def after(act: Any) -> list[str]:
        waiting = asyncio.ensure_future(anext(events))
        for _ in range(3):
            await asyncio.sleep(0)
        assert not waiting.done()
        act()
        return [sign.message for sign in await asyncio.wait_for(waiting, 60)]

    def create() -> None:
        log.parent.mkdir()
        append(log, "one\n")

    def rotate() -> None:
        log.rename(log.with_suffix(".1"))
        append(log, "three\n")

    assert await after(create) == ["one"]
    assert await after(lambda: append(log, "two\n")) == ["two"]
    assert await after(rotate) == ["three"]
    assert await after(lambda: append(log, "four\n")) == ["four"]
    await events.aclose()
