"""Releases memory that only the start needs: 0.8 MB of freed heap and 12 MB of mapped library code.

Pages of Python, OpenSSL, pydantic and RE2 that are touched during loading count as resident (RSS), although most are
never used again. They are clean, so the kernel reloads them from the page cache when needed, within a microsecond. The
kernel itself drops them only under memory pressure.

psutil does not serve: it finds its own process by PID, and in a /proc of another PID namespace that is a different
process, whose addresses are wrong here. /proc/self is always this process.
"""

import gc
import logging
import re
from pathlib import Path

log = logging.getLogger(__name__)

AFTER_START_S = 60.0  # all light checks have run once by then
_MADV_DONTNEED = 4  # madvise(2)
_MAPPING = re.compile(r"([0-9a-f]+)-([0-9a-f]+) (r-[-x])p [0-9a-f]+ [0-9a-f]+:[0-9a-f]+ ([0-9]+) .*")
_ANONYMOUS = re.compile(r"Anonymous: +([0-9]+) kB")


def trim_memory() -> None:
    """Trim the memory; once is enough. Never raises."""
    import ctypes  # here: 0.2 MB that nothing needs before

    try:
        libc = ctypes.CDLL(None)
        gc.collect()
        libc.malloc_trim(0)
        for begin, end in _clean_code():
            libc.madvise(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin), _MADV_DONTNEED)
    except (OSError, AttributeError) as error:  # no /proc/self/smaps, or a libc without malloc_trim
        log.info("cannot release memory after the start: %s", error)


def _clean_code() -> list[tuple[int, int]]:
    """Address ranges of read-only file mappings without modified pages (relocation modifies pages)."""
    found: list[tuple[int, int]] = []
    place: tuple[int, int] | None = None
    for line in Path("/proc/self/smaps").read_text(encoding="utf-8", errors="replace").splitlines():
        if mapping := _MAPPING.match(line):
            place = (int(mapping[1], 16), int(mapping[2], 16)) if int(mapping[4]) else None
        elif line[0].islower() or line[0].isdigit():
            place = None  # another kind of mapping
        elif place and (anonymous := _ANONYMOUS.match(line)):
            if not int(anonymous[1]):
                found.append(place)
            place = None
    return found
