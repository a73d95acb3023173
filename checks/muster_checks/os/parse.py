"""Parses /proc/buddyinfo, /proc/1/mountstats and /proc/loadavg.

Formats: proc(5), and fs/nfs/super.c for mountstats.
"""

LARGE_ORDER = 9  # 2 MiB, a huge page, in pages of 4 KiB (proc(5), buddyinfo)


def parse_buddyinfo(text: str) -> int | None:
    """Free memory in blocks of at least 2 MiB (order 9 and up of 4 KiB pages, ``Node 0, zone Normal N0 N1 …``), counted
    in units of 2 MiB. None if there is no such line."""
    found = None
    for line in text.splitlines():
        counts = line.split()[4:]
        if line.startswith("Node ") and len(counts) > LARGE_ORDER and all(word.isdecimal() for word in counts):
            large = counts[LARGE_ORDER:]
            found = (found or 0) + sum(int(count) << order for order, count in enumerate(large[:8]))
    return found


def parse_mountstats(text: str) -> dict[str, int]:
    """Major timeouts of each NFS mount, summed over its operations. A per-op line is ``NAME: ops transmissions
    major-time-outs …`` (fs/nfs, statvers 1.0 and 1.1)."""
    found: dict[str, int] = {}
    mount, in_operations = "", False
    for line in text.splitlines():
        words = line.split()
        if line.startswith("device "):
            is_nfs = " fstype nfs" in line and len(words) > 4
            mount, in_operations = (words[4] if is_nfs else ""), False
            if mount:
                found[mount] = 0
        elif mount and "per-op statistics" in line:
            in_operations = True
        elif mount and in_operations and len(words) > 3 and words[0].endswith(":") and words[3].isdecimal():
            found[mount] += int(words[3])
    return found


def parse_threads(loadavg: str) -> int | None:
    """``1.68 1.05 0.87 3/151 23990``: the fourth word is runnable/all scheduling entities."""
    words = loadavg.split()
    total = words[3].partition("/")[2] if len(words) == 5 else ""
    return int(total) if total.isdecimal() else None
