import time
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster_checks.base.vocabulary import Origin
from muster_checks.dmesg.sources.records import KernelLine
from muster_checks.dmesg.sources.text_formats import TextReader
from muster_checks.dmesg.sources.timeline import KernelClocks, Timeline

NOW = datetime(2025, 11, 20, 12, 0, 0, tzinfo=UTC).timestamp()
UPTIME = 100_000.0


@pytest.fixture
def utc(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def reader() -> TextReader:
    return TextReader(Timeline(KernelClocks(realtime=lambda: NOW, monotonic=lambda: UPTIME)), lambda _: True)


def read(*lines: bytes) -> list[KernelLine]:
    text = reader()
    return [line for raw in lines if (line := text.take(raw)) is not None]


def test_a_line_of_a_container_has_the_container_s_time() -> None:
    (line,) = read(b"2023-11-14T22:13:20Z stdout F [ 1843.308145] NVRM: Xid (PCI:0000:b3:00): 46")
    assert (line.at, line.stamp) == (1_700_000_000.0, "[ 1843.308145]")


XID = b"NVRM: Xid (PCI:0000:b3:00): 79, pid=1234, GPU has fallen off the bus."


@pytest.mark.parametrize(
    ("raw", "at", "stamp", "level", "origin"),
    [
        (b"4,123,456000000,-;" + XID, NOW - UPTIME + 456, "[  456.000000]", 4, Origin.KERNEL),
        (b"12,123,456000000,-,caller=T1;" + XID, NOW - UPTIME + 456, "[  456.000000]", 4, Origin.USER),
        (b"[ 1843.308145] " + XID, NOW - UPTIME + 1843.308145, "[ 1843.308145]", 6, Origin.KERNEL),
        (b"[123] " + XID, NOW - UPTIME + 123, "[123]", 6, Origin.KERNEL),
        (b"<3>[ 1843.308145] " + XID, NOW - UPTIME + 1843.308145, "[ 1843.308145]", 3, Origin.KERNEL),
        (b"<12>[ 1843.308145] " + XID, NOW - UPTIME + 1843.308145, "[ 1843.308145]", 4, Origin.USER),
        (b"<3>" + XID, NOW, "", 3, Origin.KERNEL),
        (b"[Thu Nov 20 03:42:11 2025] " + XID, NOW - 29869, "[Thu Nov 20 03:42:11 2025]", 6, Origin.KERNEL),
        (b"[Thu Nov  6 12:00:00 2025] " + XID, NOW - 14 * 86400, "[Thu Nov  6 12:00:00 2025]", 6, Origin.KERNEL),
        (b"2025-11-20T03:42:11,500000+00:00 " + XID, NOW - 29868.5, None, 6, Origin.KERNEL),
        (b"2025-11-20T03:42:11.500000+00:00 node kernel: " + XID, NOW - 29868.5, None, 6, Origin.KERNEL),
        (b"2025-11-20T03:42:11Z node kernel: [  12.5] " + XID, NOW - 29869, None, 6, Origin.KERNEL),
        (b"Thu 2025-11-20 03:42:11 UTC node kernel: " + XID, NOW - 29869, None, 6, Origin.KERNEL),
        (b"2025-11-20 03:42:11.5+02:00 node kernel: " + XID, NOW - 29868.5 - 7200, None, 6, Origin.KERNEL),
        (b"2025-11-20 03:42:11 NODE kernel: [  12.5] " + XID, NOW - 29869, None, 6, Origin.KERNEL),
        (b"2025-11-20 12:30:00 CET node kernel: " + XID, NOW, "", 6, Origin.KERNEL),
        (b"Nov 20 03:42:11 node kernel: [  12.5] " + XID, NOW - 29869, None, 6, Origin.KERNEL),
        (b"Nov  6 12:00:00 node kernel: " + XID, NOW - 14 * 86400, None, 6, Origin.KERNEL),
        (b"Nov 30 12:00:00 node kernel: " + XID, NOW - 355 * 86400, None, 6, Origin.KERNEL),
        (XID, NOW, "", 6, Origin.KERNEL),
    ],
)
@pytest.mark.usefixtures("utc")
def test_each_form_gives_text_time_and_writer(
    raw: bytes, at: float, stamp: str | None, level: int, origin: Origin
) -> None:
    (line,) = read(raw)
    assert line.text == XID.decode()
    assert line.at == pytest.approx(at)
    assert (line.level, line.origin) == (level, origin)
    if stamp is not None:
        assert line.stamp == stamp


def test_a_syslog_line_of_a_program_is_a_users() -> None:
    (line,) = read(b"Nov 20 03:42:11 node logger: " + XID)
    assert line.origin is Origin.USER


def test_no_line_is_of_the_future() -> None:
    assert read(b"[999999999.0] " + XID)[0].at == NOW
    assert read(b"2099-01-01T00:00:00,0+00:00 " + XID)[0].at == NOW


def test_the_lines_of_one_message_share_its_time() -> None:
    lines = read(
        b"<3>[ 1843.308145] NVRM: The NVIDIA GPU 0000:b3:00.0",
        b"                  NVRM: (PCI ID: 10de:26b5) installed in this system has",
        b"                  NVRM: fallen off the bus and is not responding to commands.",
        b"<6>[ 1900.000000] next",
    )
    expected = [
        "NVRM: The NVIDIA GPU 0000:b3:00.0",
        "NVRM: (PCI ID: 10de:26b5) installed in this system has",
        "NVRM: fallen off the bus and is not responding to commands.",
        "next",
    ]
    assert [line.text for line in lines] == expected
    assert [line.stamp for line in lines] == ["[ 1843.308145]"] * 3 + ["[ 1900.000000]"]
    assert [line.level for line in lines] == [3, 3, 3, 6]


def test_the_device_dictionary_is_left_out() -> None:
    lines = read(b"6,1,2,-;text", b" SUBSYSTEM=pci", b" DEVICE=+pci:0000:3b:00.0", b"6,2,3,-;more")
    assert [line.text for line in lines] == ["text", "more"]


def test_the_carriage_return_of_a_serial_console_is_no_text() -> None:
    (line,) = read(b"[    5.000000] NVRM: Xid (PCI:0000:b3:00): 46\r")
    assert line.text == "NVRM: Xid (PCI:0000:b3:00): 46"


def test_a_broken_record_is_counted() -> None:
    text = reader()
    assert text.take(b"6,1," + b"9" * 30 + b",-;text") is None
    assert text.malformed == 1


def test_only_what_may_matter_becomes_a_line() -> None:
    seen: list[bytes] = []

    def note(text: bytes) -> bool:
        seen.append(text)
        return False

    text = TextReader(Timeline(KernelClocks()), note)
    assert text.take(b"[  1.0] one") is None
    assert text.take(b"6,1,2,-;t\\x0ao") is None
    assert seen == [b"one", b"t\no"]


@given(st.lists(st.binary(max_size=100), max_size=5))
def test_no_bytes_break_it(lines: list[bytes]) -> None:
    read(*lines)


@given(
    st.lists(
        st.from_regex(
            rb"(<\d{1,3}>)?(\[\s?\d{1,14}\.\d+\]|\[[A-Z][a-z]{2} [A-Z][a-z]{2} \d\d \d\d:\d\d:\d\d \d{4}\]"
            rb"|\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[+]\d\d:\d\d|[A-Z][a-z]{2} \d\d \d\d:\d\d:\d\d) x",
            fullmatch=True,
        ),
        max_size=3,
    )
)
def test_absurd_times_do_not_break_it(lines: list[bytes]) -> None:
    for line in read(*lines):
        assert line.at <= NOW
