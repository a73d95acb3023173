import errno
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster_checks.base.vocabulary import Origin
from muster_checks.dmesg.sources.kmsg import KmsgPlace, KmsgSource, unescape
from muster_checks.dmesg.sources.source import LINES_PER_TURN, Batch
from muster_checks.dmesg.sources.timeline import KernelClocks, Timeline

SAMPLE = Path(__file__).parents[1] / "samples/kmsg.log"


def read_all(source: KmsgSource) -> Batch:
    """All turns until the source is at its end or gives up."""
    whole = Batch([], [])
    for _ in range(1000):
        batch = source.read()
        whole.lines += batch.lines
        whole.gaps += batch.gaps
        whole.at_end = batch.at_end
        if not batch.more:
            return whole
    raise AssertionError("no end")


def texts(batch: Batch) -> list[str]:
    return [line.text for line in batch.lines]


def test_records_come_out_whole(ring: Any, kmsg: Any) -> None:
    raw = SAMPLE.read_bytes().splitlines(keepends=True)
    for record in raw:
        ring.put(record)
    batch = read_all(kmsg(ring))
    assert len(batch.lines) == len(raw) == 43
    assert batch.gaps == []
    first = batch.lines[0]
    assert (first.text, first.seq, first.level, first.facility, first.origin) == (
        "nvidia-nvswitch0: open (major=505)",
        1187,
        6,
        0,
        Origin.KERNEL,
    )
    assert first.uptime_s == pytest.approx(41.018224)
    assert first.stamp == "[   41.018224]"


def test_priority_is_level_and_facility(ring: Any, kmsg: Any) -> None:
    ring.write(b"by a program", prio=12)
    ring.write(b"by the kernel", prio=3)
    user, kernel = read_all(kmsg(ring)).lines
    assert (user.level, user.facility, user.origin) == (4, 1, Origin.USER)
    assert (kernel.level, kernel.facility, kernel.origin) == (3, 0, Origin.KERNEL)


def test_escapes_are_undone_and_the_dictionary_is_left_out(ring: Any, kmsg: Any) -> None:
    ring.put(b"6,0,5,-;one\\x0atwo \\xc3\\xa9 \\x5cx41 \\xzz\n SUBSYSTEM=pci\n DEVICE=+pci:0000:3b:00.0\n")
    assert texts(read_all(kmsg(ring))) == ["one\ntwo é \\x41 \\xzz"]


def test_only_real_escapes_are_undone() -> None:
    assert unescape(b"a\\x0ab") == b"a\nb"
    assert unescape(b"a\\x5cx0ab") == b"a\\x0ab"


@pytest.mark.parametrize(
    "rubbish",
    [
        b"",
        b"no semicolon at all\n",
        b";",
        b"6,1;short head\n",
        b"x,1,2,-;no number\n",
        b"6,x,2,-;no number\n",
        b"6,1,x,-;no number\n",
        b"6,-1,2,-;negative\n",
        b"6,1," + b"9" * 40 + b",-;absurd time\n",
        b"6," + b"9" * 40 + b",2,-;absurd number\n",
        b"6,4611686018427387904,2,-;far number\n",
        b"6," + b"9" * 5000 + b",2,-;more digits than Python turns into a number\n",
        bytes(range(256)) * 4,
    ],
)
def test_what_is_no_record_costs_nothing_after_it(rubbish: bytes, ring: Any, kmsg: Any) -> None:
    ring.write(b"before")
    ring.put(rubbish or b"\n")
    ring.write(b"after")
    source = kmsg(ring)
    batch = read_all(source)
    assert texts(batch) == ["before", "after"]
    assert batch.gaps == []
    assert source.counts.malformed == 1


@given(st.lists(st.binary(min_size=1, max_size=200), max_size=20))
def test_no_bytes_break_the_reader(rubbish: list[bytes]) -> None:
    class Device:
        def __init__(self) -> None:
            self.left = [*rubbish, b"6,5,1,-;last\n"]

        def read(self) -> bytes:
            if not self.left:
                raise BlockingIOError
            return self.left.pop(0)

        def fileno(self) -> int:
            raise AssertionError

        def close(self) -> None: ...

    timeline = Timeline(KernelClocks(realtime=lambda: 2000.0, monotonic=lambda: 1000.0))
    source = KmsgSource(Path("/dev/kmsg"), timeline, lambda _: True, KmsgPlace(), lambda _: Device())
    assert texts(read_all(source))[-1:] == ["last"]


def test_a_record_of_a_thousand_bytes_is_whole(ring: Any, kmsg: Any) -> None:
    ring.write(b"x" * 1000)
    assert texts(read_all(kmsg(ring))) == ["x" * 1000]


def test_old_kernels_fragments_are_joined(ring: Any, kmsg: Any) -> None:
    ring.write(b"alone")
    ring.write(b"one ", flags=b"c")
    ring.write(b"two ", flags=b"+")
    ring.write(b"three", flags=b"+")
    ring.write(b"next")
    batch = read_all(kmsg(ring))
    assert texts(batch) == ["alone", "one two three", "next"]
    assert [line.seq for line in batch.lines] == [0, 1, 4]


def test_a_stray_fragment_is_joined_only_to_its_own_caller(ring: Any, kmsg: Any) -> None:
    ring.write(b"head ", flags=b"-,caller=T7")
    ring.write(b"tail", flags=b"c,caller=T7")
    ring.write(b"other", flags=b"-,caller=T8")
    ring.write(b"stray", flags=b"c,caller=T7")
    ring.write(b"nobody's")
    ring.write(b"stray too", flags=b"c")
    assert texts(read_all(kmsg(ring))) == ["head tail", "other", "stray", "nobody's", "stray too"]


def test_overwritten_records_are_counted_once(ring: Any, kmsg: Any) -> None:
    ring.capacity = 10
    source = kmsg(ring)
    ring.write(b"seen")
    read_all(source)
    for number in range(30):
        ring.write(b"%d" % number)
    batch = read_all(source)
    assert texts(batch) == [str(n) for n in range(20, 30)]
    assert [(gap.lost, gap.seq) for gap in batch.gaps] == [(20, 21)]
    assert source.counts.lost == 20
    assert read_all(source).gaps == []


def test_records_overwritten_before_the_first_start_are_no_gap(ring: Any, kmsg: Any) -> None:
    ring.capacity = 5
    for number in range(20):
        ring.write(b"%d" % number)
    assert read_all(kmsg(ring)).gaps == []


def test_records_of_a_new_boot_overwritten_before_the_start_are_a_gap(ring: Any, kmsg: Any) -> None:
    ring.capacity = 5
    for number in range(20):
        ring.write(b"%d" % number)
    assert [gap.lost for gap in read_all(kmsg(ring, KmsgPlace(-1))).gaps] == [15]


def test_a_record_too_long_for_the_buffer_is_a_gap(ring: Any, kmsg: Any) -> None:
    ring.write(b"before")
    ring.put(OSError(errno.EINVAL, "Invalid argument"))
    ring.write(b"after")
    batch = read_all(kmsg(ring))
    assert texts(batch) == ["before", "after"]
    assert [gap.lost for gap in batch.gaps] == [1]


def test_a_turn_is_bounded(ring: Any, kmsg: Any) -> None:
    for number in range(LINES_PER_TURN + 1):
        ring.write(b"%d" % number)
    source = kmsg(ring)
    first = source.read()
    assert (len(first.lines), first.more, first.at_end) == (LINES_PER_TURN, True, False)
    second = source.read()
    assert (len(second.lines), second.more, second.at_end) == (1, False, True)


def test_from_now_on_means_no_backlog(ring: Any, kmsg: Any) -> None:
    for number in range(2 * LINES_PER_TURN):
        ring.write(b"old %d" % number)
    source = kmsg(ring, KmsgPlace(skipping=True))
    assert source.read().lines == []
    resumed = kmsg(ring, msgspec.json.decode(source.place(), type=KmsgPlace))  # stopped while passing over
    assert texts(read_all(resumed)) == []
    ring.write(b"new")
    assert texts(read_all(resumed)) == ["new"]


def test_a_place_beyond_the_end_is_not_believed(ring: Any, kmsg: Any) -> None:
    """A machine put back to a snapshot has the same boot id and lower numbers."""
    ring.write(b"one")
    source = kmsg(ring, KmsgPlace(seq=500))
    assert texts(read_all(source)) == ["one"]
    ring.write(b"two")
    assert texts(read_all(source)) == ["two"]


def test_a_lost_device_is_opened_again_where_it_stopped(ring: Any, kmsg: Any) -> None:
    source = kmsg(ring)
    ring.write(b"one")
    read_all(source)
    ring.write(b"two")
    ring.broken = OSError(errno.EIO, "Input/output error")
    batch = read_all(source)
    assert (batch.lines, batch.at_end) == ([], False)
    assert source.health() == "/dev/kmsg: Input/output error"
    ring.broken = PermissionError(errno.EPERM, "Operation not permitted")
    read_all(source)
    assert "CAP_SYSLOG" in source.health()
    ring.broken = None
    ring.write(b"three")
    batch = read_all(source)
    assert (texts(batch), batch.gaps, batch.at_end, source.health()) == (["two", "three"], [], True, "")


def test_a_device_that_refuses_every_read_is_given_up(ring: Any, kmsg: Any) -> None:
    for _ in range(LINES_PER_TURN):
        ring.put(OSError(errno.EINVAL, "Invalid argument"))
    source = kmsg(ring)
    assert source.read().more is False
    assert source.health().startswith("/dev/kmsg: ")


actions = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.integers(1, 30)),
        st.tuples(st.just("turn"), st.just(0)),
        st.tuples(st.just("restart"), st.just(0)),
        st.tuples(st.just("vanish"), st.just(0)),
        st.tuples(st.just("rubbish"), st.just(0)),
    ),
    max_size=40,
)


@settings(max_examples=400, deadline=None)
@given(actions=actions, capacity=st.sampled_from([5, 20, 10_000]))
def test_every_record_is_read_once_or_counted_as_lost(
    actions: list[tuple[str, int]], capacity: int, new_ring: Any
) -> None:
    ring = new_ring(capacity)
    timeline = Timeline(KernelClocks(realtime=lambda: 2000.0, monotonic=lambda: 1000.0))
    place = KmsgPlace(-1)
    written, read, lost, rubbish = 0, list[int](), 0, 0

    def source_from(place: KmsgPlace) -> KmsgSource:
        return KmsgSource(Path("/dev/kmsg"), timeline, lambda _: True, place, ring.open)

    def take(batch: Batch) -> None:
        nonlocal lost
        read.extend(line.seq for line in batch.lines)
        lost += sum(gap.lost for gap in batch.gaps)

    source = source_from(place)
    # a loss shows by the number of the next record, so one comes last
    for action, number in [*actions, ("turn", 0), ("write", 1)]:
        if action == "write":
            for _ in range(number):
                ring.write(b"x")
                written += 1
        elif action == "turn":
            take(source.read())
            place = msgspec.json.decode(source.place(), type=KmsgPlace)
        elif action == "restart":
            source.close()
            source = source_from(place)
        elif action == "vanish":
            ring.broken = OSError(errno.EIO, "gone")
            source.read()
            ring.broken = None
        else:
            ring.put(b"rubbish")
            rubbish += 1
    take(read_all(source))
    source.close()
    assert read == sorted(set(read)), "in order, none twice"
    missing = written - len(read)
    assert missing <= lost <= missing + rubbish  # of what was overwritten nobody knows which was rubbish
