"""User, capabilities and no_new_privs of this process.

Capabilities and prctl are called through ctypes (0.5 MB): Python's os has neither, python-prctl needs a compiler and
libcap's headers, and a tool such as setpriv would have to be in every image. psutil cannot verify the result,
because it knows neither capabilities nor the privileges of single threads.
"""

import os
from collections.abc import Collection
from pathlib import Path

# linux/capability.h
SYS_RAWIO, SYS_ADMIN = 17, 21
# linux/prctl.h, linux/capability.h
_PR_CAPBSET_READ, _PR_CAPBSET_DROP = 23, 24
_PR_SET_NO_NEW_PRIVS = 38
_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL = 47, 4
_CAPABILITY_VERSION_3 = 0x20080522


def switch_user(user: int, group: int, keep: Collection[int] = ()) -> None:
    """Become ``user`` and ``group`` for good, with no capabilities except ``keep`` and no way to gain any.

    keep: capabilities that the process has; another user than root keeps none. The order of the steps matters: each
    needs a privilege that a later one drops. Raises OSError.
    """
    import ctypes  # here: 0.5 MB that only this needs

    libc = ctypes.CDLL(None, use_errno=True)

    def prctl(option: int, argument: int = 0) -> int:
        answer: int = libc.prctl(option, *(ctypes.c_ulong(number) for number in (argument, 0, 0, 0)))
        return answer

    def failure(what: str) -> OSError:
        number = ctypes.get_errno()
        return OSError(number, f"{what}: {os.strerror(number)}")

    for capability in range(64):
        bounded = prctl(_PR_CAPBSET_READ, capability)
        if bounded < 0:
            break  # the kernel has no more capabilities
        if bounded and capability not in keep and prctl(_PR_CAPBSET_DROP, capability) < 0:
            raise failure("cannot empty the bounding set")
    if prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL) < 0:
        raise failure("cannot empty the ambient set")
    os.setgroups([])
    os.setresgid(group, group, group)
    os.setresuid(user, user, user)
    kept = _mask(keep)
    ourselves = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    sets = (ctypes.c_uint32 * 6)(kept, kept, 0, 0, 0, 0)  # effective, permitted, inheritable; then of those above 31
    if libc.capset(ourselves, sets) < 0:
        raise failure("cannot drop capabilities")
    if prctl(_PR_SET_NO_NEW_PRIVS, 1) < 0:
        raise failure("cannot set no_new_privs")


def permitted(wanted: Collection[int]) -> tuple[int, ...]:
    """Which of these capabilities this process has."""
    held = int(_fields(Path("/proc/self/status"))["CapPrm"], 16)
    return tuple(capability for capability in wanted if held >> capability & 1)


def remaining_privileges(process: str, user: int, group: int, keep: Collection[int] = ()) -> list[str]:
    """The privileges of a process (``self`` or a PID) beyond those of ``user`` and ``group`` with the capabilities
    ``keep``, by thread, from /proc/PID/task/TID/status (proc(5)). Raises OSError if the process does not exist."""
    kept = f"{_mask(keep):016x}"
    wanted = {
        "Uid": "\t".join([str(user)] * 4),
        "Gid": "\t".join([str(group)] * 4),
        "Groups": "",
        **dict.fromkeys(("CapInh", "CapAmb"), "0" * 16),
        **dict.fromkeys(("CapPrm", "CapEff", "CapBnd"), kept),
        "NoNewPrivs": "1",
    }
    left = []
    for thread in sorted(Path(f"/proc/{process}/task").iterdir()):
        found = _fields(thread / "status")
        left += [
            f"{name} {found.get(name, 'missing')!r} (thread {thread.name})"
            for name, value in wanted.items()
            if found.get(name) != value
        ]
    return left


def _fields(status: Path) -> dict[str, str]:
    lines = status.read_text(encoding="utf-8", errors="replace").splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def _mask(capabilities: Collection[int]) -> int:
    return sum(1 << capability for capability in capabilities)
