"""How much memory a process of this machine may take without harm: the machine's, and its control groups'.

Read for the process itself, not for the node: an agent in a container is bound by the container's limit. What the
machine has available comes from psutil, which knows nothing of control groups.
"""

from pathlib import Path

from muster_checks.base.bounded_read import read_integer, read_text


def find_room_bytes(available_bytes: int, root: Path = Path("/")) -> int:
    """The least of what the machine has available and of what each control group of this process has left."""
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
    """What each group from ``path`` up to the mount has left. In a container ``path`` may name a folder that only the
    host sees; then the mount itself is the container's group."""
    left = []
    names = [name for name in path.split("/") if name not in ("", "..")]
    for depth in range(len(names) + 1):
        folder = mount.joinpath(*names[:depth])
        # "max" and version 1's 2^63 mean no limit; a group without a file has none, either
        most, used = read_integer(folder / limit), read_integer(folder / usage)
        if most is not None and used is not None:
            left.append(max(0, most - used))
    return left
