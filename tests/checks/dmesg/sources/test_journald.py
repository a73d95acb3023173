import asyncio
import errno
import os
import sys
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.machine import needs
from tests.wording.facts import missing_facts

from muster_checks.base.vocabulary import Origin
from muster_checks.dmesg.sources.journald import ENTRY_BYTES, ExportParser, JournalPlace, JournalSource, parse_entry
from muster_checks.dmesg.sources.timeline import Timeline
from muster_checks.dmesg.stream import KernelLogStream

BOOT = "3e1d192e-7ea2-47b4-b8b4-1cb0700ffc7d"
BOOT_HEX = BOOT.replace("-", "").encode()


def entry(number: int, message: bytes = b"", **fields: bytes) -> bytes:
    lines = {
        b"__CURSOR": b"s=1;i=%d" % number,
        b"__REALTIME_TIMESTAMP": b"1700000123000000",
        b"__MONOTONIC_TIMESTAMP": b"123000000",
        b"_BOOT_ID": BOOT_HEX,
        b"_TRANSPORT": b"kernel",
        b"PRIORITY": b"4",
        b"SYSLOG_FACILITY": b"0",
        b"_SOURCE_MONOTONIC_TIMESTAMP": b"120500000",
        b"MESSAGE": message or b"line %d" % number,
    } | {name.encode(): value for name, value in fields.items()}
    return b"".join(exported(name, value) for name, value in lines.items()) + b"\n"


def exported(name: bytes, value: bytes) -> bytes:
    if b"\n" in value or any(byte < 32 for byte in value):
        return name + b"\n" + len(value).to_bytes(8, "little") + value + b"\n"
    return name + b"=" + value + b"\n"


def messages(entries: list[dict[bytes, bytes]]) -> list[bytes]:
    return [found[b"MESSAGE"] for found in entries]


BINARY = b"NVRM: The NVIDIA GPU\n\nNVRM: fallen off\x00 the bus\n"


@pytest.mark.parametrize("size", [1, 2, 7, 100, 10_000])
def test_entries_come_out_whole_however_the_bytes_arrive(size: int) -> None:
    data = entry(1) + entry(2, BINARY) + entry(3)
    parser = ExportParser()
    entries = [found for start in range(0, len(data), size) for found in parser.feed(data[start : start + size])]
    assert messages(entries) == [b"line 1", BINARY, b"line 3"]
    assert entries[1][b"__CURSOR"] == b"s=1;i=2"
    assert parser.malformed == 0


@pytest.mark.parametrize(
    "rubbish",
    [
        b"MESSAGE\n" + b"\xff" * 8 + b"endless\n\n",
        b"MESSAGE\n" + (3).to_bytes(8, "little") + b"no newline after it\n\n",
        b"MESSAGE\n" + (ENTRY_BYTES + 1).to_bytes(8, "little") + b"too much\n\n",
    ],
)
def test_what_is_no_entry_costs_nothing_after_it(rubbish: bytes) -> None:
    parser = ExportParser()
    assert messages(parser.feed(entry(1) + rubbish + entry(2))) == [b"line 1", b"line 2"]
    assert parser.malformed == 1


def test_an_endless_field_is_given_up() -> None:
    parser = ExportParser()
    for _ in range(40):
        assert parser.feed(b"x" * 64 * 1024) == []
    assert len(parser._rest) < 2 * ENTRY_BYTES
    assert messages(parser.feed(b"\n\n" + entry(1))) == [b"line 1"]


@given(st.lists(st.binary(max_size=200), max_size=10))
def test_no_bytes_break_the_parser(chunks: list[bytes]) -> None:
    parser = ExportParser()
    for chunk in chunks:
        parser.feed(chunk)


def line_of(timeline: Timeline, **fields: bytes) -> Any:
    (found,) = ExportParser().feed(entry(1, **fields))
    return parse_entry(found, timeline, BOOT)


def test_the_kernels_own_time_counts_in_this_boot(timeline: Timeline) -> None:
    line = line_of(timeline)
    assert line.at == timeline.booted + 120.5
    assert (line.uptime_s, line.stamp) == (120.5, "[  120.500000]")
    assert (line.level, line.facility, line.origin) == (4, 0, Origin.KERNEL)


def test_the_daemons_time_counts_for_another_boot(timeline: Timeline) -> None:
    assert line_of(timeline, _BOOT_ID=b"f" * 32).at == 1_700_000_123.0


def test_absurd_numbers_are_none(timeline: Timeline) -> None:
    line = line_of(timeline, PRIORITY=b"9" * 40, SYSLOG_FACILITY=b"-1", _SOURCE_MONOTONIC_TIMESTAMP=b"x")
    assert (line.level, line.facility, line.at) == (6, 0, 1_700_000_123.0)


def test_a_programs_line_is_a_users(timeline: Timeline) -> None:
    assert line_of(timeline, SYSLOG_FACILITY=b"1").origin is Origin.USER


# A journalctl that plays a folder: the journal is the file `journal`, `calls` keeps how it was called.
JOURNALCTL = """
import os, sys, time, pathlib
home = pathlib.Path(sys.argv[1])
with (home / "calls").open("a") as calls:
    calls.write(" ".join(sys.argv[2:]) + "\\n")
    calls.write(f"{os.getpid()} {os.getpgid(0)}\\n")
if (home / "broken").exists():
    print("Failed to add match: bad", file=sys.stderr)
    sys.exit(1)
after = next((int(a.split("i=")[1]) for a in sys.argv if a.startswith("--after-cursor=")), 0)
shown = after
while True:
    entries = (home / "journal").read_bytes().split(b"\\n\\n")[:-1]
    for entry in entries[shown:]:
        sys.stdout.buffer.write(entry + b"\\n\\n")
    shown = max(shown, len(entries))
    sys.stdout.flush()
    if (home / "complains").exists():
        os.write(2, b"warning" * 1000)
    if "-f" not in sys.argv:
        break
    time.sleep(0.01)
if (home / "lingers").exists():
    os.close(1)
    time.sleep(600)
"""


class Journal:
    def __init__(self, home: Path) -> None:
        self.home, self.count = home, 0
        (home / "journal").touch()
        (home / "journalctl.py").write_text(JOURNALCTL)
        self.command = (sys.executable, str(home / "journalctl.py"), str(home), "-k")

    def write(self, text: bytes = b"") -> None:
        self.count += 1
        with (self.home / "journal").open("ab") as file:
            file.write(entry(self.count, text))

    def calls(self) -> list[str]:
        return (self.home / "calls").read_text().splitlines()[::2]

    def children(self) -> list[tuple[int, int]]:
        lines = (self.home / "calls").read_text().splitlines()[1::2]
        return [(int(pid), int(group)) for pid, group in (line.split() for line in lines)]

    def stream(self, timeline: Timeline, judge: Any, place: JournalPlace) -> Any:
        source = JournalSource(timeline, judge.interesting, place, BOOT, command=self.command)
        return KernelLogStream(source, judge, timeline, boot_id=BOOT, source_name="journal")


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(tmp_path)


def place_in(stream: KernelLogStream) -> JournalPlace:
    return msgspec.json.decode(msgspec.json.decode(stream.position())["place"], type=JournalPlace)


async def test_the_journal_is_read_to_its_end_and_followed(journal: Journal, timeline: Timeline, echo: Any) -> None:
    journal.write()
    journal.write(b"dull")
    stream = journal.stream(timeline, echo(), JournalPlace())
    events = stream.events()
    assert [sign.message for sign in await asyncio.wait_for(anext(events), 60)] == ["line 1"]
    waiting = asyncio.ensure_future(anext(events))
    await asyncio.wait_for(stream.drain(), 60)
    assert stream.caught_up
    journal.write()
    assert [sign.message for sign in await asyncio.wait_for(waiting, 60)] == ["line 3"]
    waiting = asyncio.ensure_future(anext(events))
    await asyncio.sleep(0)
    assert place_in(stream) == JournalPlace("s=1;i=3")
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    for pid, group in journal.children():
        assert group == pid != os.getpgid(0)
        assert not psutil.pid_exists(pid)
    assert all("-k -o export --all" in call for call in journal.calls())


async def test_a_look_begun_before_the_question_does_not_answer_it(
    journal: Journal, timeline: Timeline, echo: Any, read_out: Any
) -> None:
    stream = journal.stream(timeline, echo(), JournalPlace())
    reader = asyncio.ensure_future(anext(stream.events()))
    await asyncio.sleep(0)  # the first look is on its way
    await asyncio.wait_for(stream.drain(), 60)
    reader.cancel()
    await asyncio.gather(reader, return_exceptions=True)
    looks = [call for call in journal.calls() if "-f" not in call.split()]
    assert len(looks) == 2


async def test_a_restart_reads_each_entry_once(journal: Journal, timeline: Timeline, echo: Any, read_out: Any) -> None:
    place, read = JournalPlace(), list[str]()
    for _ in range(3):
        journal.write()
        journal.write()
        stream = journal.stream(timeline, echo(), place)
        read += [sign.message for sign in await read_out(stream)]
        place = place_in(stream)
    assert read == [f"line {number}" for number in range(1, 7)]


async def test_from_now_on_means_no_backlog(journal: Journal, timeline: Timeline, echo: Any, read_out: Any) -> None:
    journal.write()
    stream = journal.stream(timeline, echo(), JournalPlace(skipping=True))
    assert await read_out(stream) == []
    journal.write()
    again = journal.stream(timeline, echo(), place_in(stream))
    assert [sign.message for sign in await read_out(again)] == ["line 2"]


async def test_a_journalctl_that_fails_is_reported(
    journal: Journal, timeline: Timeline, echo: Any, read_out: Any
) -> None:
    (journal.home / "broken").touch()
    stream = journal.stream(timeline, echo(), JournalPlace())
    assert await read_out(stream) == []
    assert missing_facts(stream.health(), "journalctl", "add match: bad") == []
    assert not stream.caught_up


async def test_a_journalctl_that_complains_without_end_is_followed(
    journal: Journal, timeline: Timeline, echo: Any
) -> None:
    (journal.home / "complains").touch()
    stream = journal.stream(timeline, echo(), JournalPlace())
    heard = stream.events()
    async with asyncio.timeout(60):
        # each turn of the child prints 8 KB, and a pipe takes 64 KiB
        for number in range(1, 41):
            journal.write()
            assert [sign.message for sign in await anext(heard)] == [f"line {number}"]
            await asyncio.sleep(0.02)
    await heard.aclose()
    assert not any(psutil.pid_exists(pid) for pid, _ in journal.children())


async def test_a_journalctl_that_is_slow_to_exit_has_not_failed(
    journal: Journal, timeline: Timeline, echo: Any, read_out: Any
) -> None:
    (journal.home / "lingers").touch()
    journal.write()
    stream = journal.stream(timeline, echo(), JournalPlace())
    assert [sign.message for sign in await read_out(stream)] == ["line 1"]
    assert stream.health() == ""
    assert stream.caught_up


async def test_a_missing_journalctl_is_reported(timeline: Timeline, echo: Any, read_out: Any, tmp_path: Path) -> None:
    source = JournalSource(timeline, lambda _: True, JournalPlace(), BOOT, command=(str(tmp_path / "journalctl"),))
    stream = KernelLogStream(source, echo(), timeline, boot_id=BOOT, source_name="journal")
    assert await read_out(stream) == []
    assert os.strerror(errno.ENOENT) in stream.health()
    assert not stream.caught_up


@needs("journalctl")
async def test_the_real_journalctl_takes_our_options(timeline: Timeline, echo: Any, read_out: Any) -> None:
    """Whether or not there is a journal here: what it says must not be about how it is called."""
    source = JournalSource(timeline, lambda _: True, JournalPlace(skipping=True), BOOT)
    stream = KernelLogStream(source, echo(), timeline, boot_id=BOOT, source_name="journal")
    await read_out(stream)
    assert not any(word in stream.health() for word in ("option", "argument", "cursor"))
