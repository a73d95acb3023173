"""What only a start needs is given back once the start is over: 0.8 MB of freed heap, 12 MB of library code.

Python, OpenSSL, pydantic and RE2 are mapped from their files, and each page that was touched while they were loaded
stays counted as ours (RSS) although it is never used again. It is clean, so nothing is lost: what is used after all
comes back from the page cache, a microsecond each time. The kernel would do the same, but only when memory is short.

Read here and not by psutil, which finds its own process by number: in a /proc of another PID namespace that is somebody
else, and pages at that process's addresses would be thrown away here. /proc/self is always this process.
"""

import gc
import logging
import re
from pathlib import Path

log = logging.getLogger(__name__)

AFTER_START_S = 60.0  # all light checks have run once by then, and have what they need
_MADV_DONTNEED = 4  # madvise(2)
_MAPPING = re.compile(r"([0-9a-f]+)-([0-9a-f]+) (r-[-x])p [0-9a-f]+ [0-9a-f]+:[0-9a-f]+ ([0-9]+) .*")
_ANONYMOUS = re.compile(r"Anonymous: +([0-9]+) kB")


def trim_memory() -> None:
    """Once is enough. Never raises: where the kernel refuses, it stays as it was."""
    import ctypes  # here: 0.2 MB that nobody needs before

    try:
        libc = ctypes.CDLL(None)
        gc.collect()
        libc.malloc_trim(0)
        for begin, end in _clean_code():
            libc.madvise(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin), _MADV_DONTNEED)
    except (OSError, AttributeError) as error:  # no /proc/self/smaps; another libc than glibc has no malloc_trim
        log.info("memory of the start is not given back: %s", error)


def _clean_code() -> list[tuple[int, int]]:
    """Addresses of what is mapped from files, may not be written to, and never was (a relocated page is our own)."""
    found: list[tuple[int, int]] = []
    place: tuple[int, int] | None = None
    for line in Path("/proc/self/smaps").read_text(encoding="utf-8", errors="replace").splitlines():
        if mapping := _MAPPING.match(line):
            place = (int(mapping[1], 16), int(mapping[2], 16)) if int(mapping[4]) else None
        elif line[0].islower() or line[0].isdigit():
            place = None  # a mapping of another kind
        elif place and (anonymous := _ANONYMOUS.match(line)):
            if not int(anonymous[1]):
                found.append(place)
            place = None
    return found
