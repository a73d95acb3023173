"""Records that come in a row are read and looked at together: what is found in them is what is found one by one."""

import errno
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from muster_checks.base.declaration import AllClear, Sign
from muster_checks.dmesg.catalogue.loader import load_catalogue
from muster_checks.dmesg.catalogue.types import Catalogue
from muster_checks.dmesg.judge import KernelLogJudge
from muster_checks.dmesg.sources.kmsg import LINES_PER_LOOK, KmsgPlace, KmsgSource
from muster_checks.dmesg.sources.records import KernelLine
from muster_checks.dmesg.sources.source import LINES_PER_TURN, Gap, SourceCounts
from muster_checks.dmesg.sources.timeline import KernelClocks, Timeline

NOW = KernelClocks(realtime=lambda: 2000.0, monotonic=lambda: 1000.0)
DULL = b"cni0: port 7(veth7) entered blocking state"
XID = b"NVRM: Xid (PCI:0000:b3:00): 79, pid=1, GPU has fallen off the bus."


class OneByOne(KmsgSource):
    """Takes each record by itself, as every source does where they are not in a row."""

    def _take_run(self, _raws: Any, _batch: Any) -> bool:
        return False


# ---- how records come ---------------------------------------------------------------------------------------------

MESSAGES = st.sampled_from(
    [
        DULL,
        DULL,
        b"",
        XID,
        b"nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 24007, Fatal, Link 28 sourcetrack timeout error (First)",
        b"EDAC MC0: 4 CE memory read error on DIMM_A (channel:0)",
        b"mce: [Hardware Error]: Machine check events logged",
        b"watchdog: BUG: soft lockup - CPU#0 stuck for 27s! [x:1]",
        b" mlx5e_napi_poll+0x12/0x34 [mlx5_core]",
        b"nfs: server a OK",
        b"widget w7 died",
        b"widget w7 died; not the end",
        b"widget",
        b"both ends",
        b"not both ends",
        b"open",
        b"shut",
        b"first\\x0awidget w7 died",
        b"a tab\\x09in it",
        "beyond é".encode(),
        b"NVRM: Xid (PCI:0000:b3:00): ",
        b"79, the rest of it",
    ]
)
DICTIONARIES = st.sampled_from([b"", b"", b" SUBSYSTEM=pci\n DEVICE=+pci:0000:3b:00.0\n", b" DEVICE=widget w7 died\n"])
FLAGS = st.sampled_from([b"-", b"-", b"-", b"-", b"-", b"c", b"+", b"-,caller=T1", b"c,caller=T1", b"-,caller=T2"])
FIRST = 100
PRIOS = st.sampled_from([b"6", b"4", b"12", b"x", b"-3"])
STEPS = st.sampled_from([1] * 12 + [0, -1, 2, 5])  # from one record's number to the next
RUBBISH = st.sampled_from(
    [
        b"no record\n",
        b"6,1;too short\n",
        b"6,x,1,-;no number\n",
        b"6," + b"9" * 5000 + b",1,-;no number\n",
        b"6,4611686018427387904,2,-;far number\n",
        b"6,100,1,-",
        OSError(errno.EINVAL, "Invalid argument"),
        OSError(errno.EIO, "Input/output error"),
        BrokenPipeError(),
        BlockingIOError(),
        b"",
    ]
)


def records(prios: Any, steps: Any, flags: Any) -> Any:
    return st.builds(
        lambda prio, step, flag, text, rest: (prio, step, flag, text + b"\n" + rest),
        prios,
        steps,
        flags,
        MESSAGES,
        DICTIONARIES,
    )


ORDINARY = records(st.just(b"6"), st.just(1), st.just(b"-"))
IN_PIECES = records(st.just(b"6"), st.just(1), FLAGS)
ODD = records(PRIOS, STEPS, FLAGS)
TURNS = st.one_of(
    st.lists(ORDINARY, min_size=1, max_size=8),
    st.lists(ORDINARY, min_size=33, max_size=40),
    st.lists(IN_PIECES, min_size=1, max_size=8),
    st.lists(ODD, max_size=2),
    st.lists(st.one_of(ORDINARY, ODD, RUBBISH), max_size=10),
)
Record = tuple[bytes, int, bytes, bytes]  # priority, step from the number before, flags, what follows the semicolon
Part = Record | bytes | OSError


class Recorded:
    """A device that gives ``records`` and then stands at its end; one that is opened later goes on after the first."""

    def __init__(self, records: list[bytes | OSError]) -> None:
        self.records = records

    def read(self) -> bytes:
        if not self.records:
            raise BlockingIOError
        record = self.records.pop(0)
        if isinstance(record, OSError):
            raise record
        return record

    def fileno(self) -> int:
        raise AssertionError

    def close(self) -> None: ...


def records_of(parts: Sequence[Part]) -> list[bytes | OSError]:
    records: list[bytes | OSError] = []
    seq = FIRST - 1
    for part in parts:
        if isinstance(part, tuple):
            prio, step, flags, text = part
            seq += step
            records.append(b"%s,%d,%d,%s;%s" % (prio, seq, 5_000_000 + seq, flags, text))
        else:
            records.append(part)
    return records


class Told(msgspec.Struct):
    """All that can be seen of a source that was read to its end."""

    lines: list[KernelLine]
    events: list[Sign | AllClear]
    gaps: list[Gap]
    turns: list[tuple[bool, bool, str, bytes]]
    counts: SourceCounts


def read(kind: type[KmsgSource], records: list[bytes | OSError], catalogue: Catalogue, place: KmsgPlace) -> Told:
    judge = KernelLogJudge(catalogue, clock=NOW.realtime)
    left = list(records)
    source = kind(Path("/dev/kmsg"), Timeline(NOW), judge.interesting, place, lambda _: Recorded(left))
    told = Told([], [], [], [], source.counts)
    for _ in range(2 * len(records) + 10):
        batch = source.read()
        told.lines += batch.lines
        told.gaps += batch.gaps
        told.turns.append((batch.at_end, batch.more, source.health(), source.place()))
        for line in batch.lines:
            told.events += judge.take(line)
        if batch.at_end and not left:
            break
    assert not left
    return told


@pytest.fixture(scope="module")
def catalogues(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Catalogue]:
    """The shipped rows alone, and with a user's."""
    own = {
        "anchored lines": ["^widget w7 died$", "^both ends$"],
        "anchored texts": [r"\Awidget w7 died\z", r"(?-m)^both ends$"],
        "begun": [r"\Awidget"],
        "ended": [r"widget\z"],
        "over lines": ["(?s)open.*shut", "open[^x]+shut", r"open\s*shut"],
    }
    shipped = {"shipped": load_catalogue()}
    for name, patterns in own.items():
        rows = [
            {
                "name": f"Own{number}",
                "pattern": pattern,
                "component": "host",
                "verdict": "WARN",
                "message": f"own {number}",
            }
            for number, pattern in enumerate(patterns)
        ]
        path = tmp_path_factory.mktemp("rows") / "mine.yaml"
        path.write_bytes(msgspec.json.encode({"rows": rows}))
        shipped[name] = load_catalogue(path)
    return shipped


NAMES = st.sampled_from(["shipped", "anchored lines", "anchored texts", "begun", "ended", "over lines"])
PLACES = st.sampled_from([KmsgPlace(FIRST - 1)] * 3 + [KmsgPlace(), KmsgPlace(FIRST + 3), KmsgPlace(skipping=True)])
WIDGET: Record = (b"6", 1, b"-", b"widget w7 died\n")
OTHER: Record = (b"6", 1, b"-", DULL + b"\n")
HEAD: Record = (b"6", 1, b"c", b"NVRM: Xid (PCI:0000:b3:00): \n")
TAIL: Record = (b"6", 1, b"+", b"79, pid=1\n")
AGAIN: Record = (b"6", 0, b"-", b"widget w7 died\n")
LATER: Record = (b"6", 2, b"-", DULL + b"\n")


@settings(max_examples=200, deadline=None)
@given(turns=st.lists(TURNS, max_size=6), name=NAMES, place=PLACES)
@example(turns=[[OTHER, WIDGET, OTHER]], name="anchored texts", place=KmsgPlace(FIRST - 1))
@example(turns=[[OTHER, WIDGET, OTHER]], name="anchored lines", place=KmsgPlace(FIRST - 1))
@example(turns=[[OTHER, WIDGET, OTHER]], name="begun", place=KmsgPlace(FIRST - 1))
@example(turns=[[OTHER, (b"6", 1, b"-", b"widget\n"), OTHER]], name="ended", place=KmsgPlace(FIRST - 1))
@example(turns=[[OTHER, HEAD, TAIL]], name="shipped", place=KmsgPlace(FIRST - 1))
@example(turns=[[OTHER], [WIDGET, AGAIN]], name="begun", place=KmsgPlace(FIRST - 1))
@example(turns=[[OTHER], [AGAIN, WIDGET]], name="begun", place=KmsgPlace(FIRST - 1))
@example(turns=[[b"no record\n"], [OTHER], [LATER]], name="shipped", place=KmsgPlace(FIRST - 1))
def test_records_in_a_row_say_what_they_say_one_by_one(
    turns: list[list[Part]], name: str, place: KmsgPlace, catalogues: dict[str, Catalogue]
) -> None:
    """``turns``: what is there each time the reader looks."""
    log = records_of([part for turn in turns for part in (*turn, BlockingIOError())])
    together, one_by_one = (read(kind, log, catalogues[name], place) for kind in (KmsgSource, OneByOne))
    assert together == one_by_one


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("shipped", XID, "Xid79"),
        ("anchored lines", b"widget w7 died", "Own0"),
        ("anchored lines", b"both ends", "Own1"),
        ("anchored texts", b"widget w7 died", "Own0"),
        ("anchored texts", b"both ends", "Own1"),
        ("begun", b"widget w7", "Own0"),
        ("ended", b"widget", "Own0"),
        ("shipped", b"NVRM: The NVIDIA GPU 0000:b3:00.0\\x0a" + XID, "Xid79"),
    ],
)
@pytest.mark.parametrize("at", [0, 1, LINES_PER_LOOK - 1, LINES_PER_LOOK, 2 * LINES_PER_LOOK, 99])
def test_one_line_among_many_is_found(
    name: str, text: bytes, reason: str, at: int, catalogues: dict[str, Catalogue]
) -> None:
    parts: list[Part] = [OTHER] * 100
    parts[at] = (b"6", 1, b"-", text + b"\n")
    told = read(KmsgSource, records_of(parts), catalogues[name], KmsgPlace(FIRST - 1))
    assert [event.reason for event in told.events if isinstance(event, Sign)] == [reason]
    assert told.counts == SourceCounts(lines=100)


def test_ordinary_lines_are_looked_at_together() -> None:
    looked_at: list[bytes] = []

    def interesting(text: bytes) -> bool:
        looked_at.append(text)
        return False

    log = records_of([OTHER] * LINES_PER_TURN)
    place = KmsgPlace(FIRST - 1)
    source = KmsgSource(Path("/dev/kmsg"), Timeline(NOW), interesting, place, lambda _: Recorded(log))
    assert source.read().lines == []
    assert source.counts.lines == LINES_PER_TURN
    assert len(looked_at) == LINES_PER_TURN / LINES_PER_LOOK


def test_only_the_lines_beside_one_of_interest_are_looked_at_by_themselves() -> None:
    looked_at: list[bytes] = []

    def interesting(text: bytes) -> bool:
        looked_at.append(text)
        return XID in text

    parts: list[Part] = [OTHER] * (3 * LINES_PER_LOOK)
    parts[LINES_PER_LOOK] = (b"6", 1, b"-", XID + b"\n")
    log = records_of(parts)
    place = KmsgPlace(FIRST - 1)
    source = KmsgSource(Path("/dev/kmsg"), Timeline(NOW), interesting, place, lambda _: Recorded(log))
    assert [line.text for line in source.read().lines] == [XID.decode()]
    assert len(looked_at) == 3 + LINES_PER_LOOK


@pytest.mark.parametrize("form", ["-;%s\n", "-,caller=T1;%s\n", "-;%s\n SUBSYSTEM=net\n DEVICE=n7\n"])
def test_ordinary_records_are_looked_at_together(form: str, ring: Any) -> None:
    """The cost of a flood: one look for many records, in each form in which the kernel delivers them."""
    judge = KernelLogJudge(load_catalogue())
    looks: list[bytes] = []

    def interesting(text: bytes) -> bool:
        looks.append(text)
        return judge.interesting(text)

    for number in range(LINES_PER_LOOK * 4):
        ring.put(f"6,{number},{number},{form % DULL.decode()}".encode())
    source = KmsgSource(Path("/dev/kmsg"), Timeline(NOW), interesting, KmsgPlace(-1), ring.open)
    assert source.read().lines == []
    assert (source.counts.lines, len(looks)) == (LINES_PER_LOOK * 4, 4)
