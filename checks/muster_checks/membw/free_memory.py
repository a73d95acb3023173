"""How much memory a process may use, by the free memory of the machine and the limits of its control groups.

Read for this process, not for the node: an agent in a container is bound by the container's limit. psutil supplies the
machine's available memory; it does not know control groups.
"""

from pathlib import Path

from muster_checks.base.bounded_read import read_integer, read_text


def find_room_bytes(available_bytes: int, root: Path = Path("/")) -> int:
    """The minimum of the machine's available memory and of what is left in each control group of this process."""
    rooms = [available_bytes]
    for line in (read_text(root / "proc/self/cgroup") or "").splitlines():
        # "0::/kubepods/pod7" (version 2), "4:memory:/kubepods/pod7" (version 1)
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if "memory" in controllers.split(","):
            rooms += _left(root / "sys/fs/cgroup/memory", path, "memory.limit_in_bytes", "memory.usage_in_bytes")
        elif number == "0":
            rooms += _left(root / "sys/fs/cgroup", path, "memory.max", "memory.current")
    return min(rooms)


def _left(mount: Path, path: str, limit: str, usage: str) -> list[int]:
    """What is left in each group from ``path`` up to the mount. In a container, ``path`` may name a folder that only
    the host sees; the mount itself is then the container's group."""
    left = []
    names = [name for name in path.split("/") if name not in ("", "..")]
    for depth in range(len(names) + 1):
        folder = mount.joinpath(*names[:depth])
        # "max" and version 1's 2^63 mean no limit, as does a missing file
        most, used = read_integer(folder / limit), read_integer(folder / usage)
        if most is not None and used is not None:
            left.append(max(0, most - used))
    return left
