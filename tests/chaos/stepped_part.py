"""Runs a part of Muster whose wall clock is off: ``python stepped_part.py OFFSET MODULE WORDS…``.

OFFSET is a file of one little-endian double, in seconds, which may change while the part runs. Muster's parts take
their clocks as parameters with :func:`time.time` as default; this sets that default before any of them is loaded.
Monotonic clocks stay: no machine steps those.
"""

import mmap
import runpy
import struct
import sys
import time
from pathlib import Path

_DOUBLE = struct.Struct("<d")
_now = time.time


def step_clock(offset: Path) -> None:
    with offset.open("r+b") as opened:
        shared = mmap.mmap(opened.fileno(), _DOUBLE.size)

    def stepped() -> float:
        return float(_now() + _DOUBLE.unpack_from(shared)[0])

    time.time = stepped


def write_offset(offset: Path, seconds: float) -> None:
    """In place, as the file is mapped."""
    with offset.open("r+b" if offset.exists() else "w+b") as opened:
        opened.write(_DOUBLE.pack(seconds))


if __name__ == "__main__":
    step_clock(Path(sys.argv[1]))
    sys.path[0] = ""
    sys.argv = sys.argv[2:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
