"""Drops root: opens what only root may open, then drops all privileges for good, before anything listens.

A container's device cgroup and ``kernel.dmesg_restrict`` restrict /dev/kmsg to root with CAP_SYSLOG. The kernel checks
this only when the file is opened, so a process without privileges can keep reading and rewinding an open descriptor.

Capabilities and prctl are called through ctypes (0.5 MB): Python's os has neither, python-prctl needs a compiler and
libcap's headers, and a tool such as setpriv would have to be in every image. psutil cannot verify the result,
because it knows neither capabilities nor the privileges of single threads.
"""

import logging
import os
import stat
from collections.abc import Mapping
from pathlib import Path

from pydantic import ValidationError

from muster_agent.checks.state_file import FILE_NAME, LOCK_NAME
from muster_agent.settings import AgentSettings, CheckSettings
from muster_checks.base.declaration import NodeView
from muster_checks.dmesg import DmesgParameters, SourceKind
from muster_kube.process.settings import SettingsError

log = logging.getLogger(__name__)

# linux/prctl.h, linux/capability.h
_PR_CAPBSET_READ, _PR_CAPBSET_DROP = 23, 24
_PR_SET_NO_NEW_PRIVS = 38
_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL = 47, 4
_CAPABILITY_VERSION_3 = 0x20080522
_OURS = FILE_NAME.partition(".")[0] + "."
_NEEDED = "root with the capabilities CHOWN, SETGID, SETPCAP, SETUID and SYSLOG"


def drop_privileges(settings: AgentSettings) -> Mapping[Path, int]:
    """Switch to the user ``settings.run_as`` for good, with no capabilities and no way to gain any.

    Returns the file descriptors opened before, by path: the kernel log, if the check dmesg reads a device that can be
    opened; otherwise the check reports the problem. Before the switch, it creates the state directory and gives it to
    the new user.

    Call it while the process has one thread, because privileges belong to threads; otherwise it raises RuntimeError.
    Raises SettingsError if the process may not drop its privileges.
    """
    if settings.run_as is None:
        return {}
    user, group = _user(settings.run_as)
    if os.geteuid() != 0:
        raise SettingsError(
            f"run_as: {settings.run_as!r}: only root can switch to another user, and this process is user "
            f"{os.geteuid()}: start it as root, or remove run_as"
        )
    threads = os.listdir("/proc/self/task")  # noqa: PTH208 - names, no paths
    if len(threads) != 1:
        raise RuntimeError(
            f"cannot drop privileges with {len(threads)} threads running: the other threads would keep theirs"
        )
    opened = _open_kernel_log(settings)
    _hand_over(settings.state_directory, user, group)
    try:
        drop_to(user, group)
    except OSError as error:
        raise SettingsError(f"run_as: {settings.run_as!r}: {error}: start the agent as {_NEEDED}") from error
    left = remaining_privileges("self", user, group)
    if left:  # the calls succeeded without effect: do not run with hidden privileges
        raise SettingsError(f"run_as: {settings.run_as!r}: privileges remain after dropping them: {', '.join(left)}")
    log.info(
        "dropped privileges: user %d, group %d, no capabilities; files opened before: %s",
        user,
        group,
        [str(path) for path in opened],
    )
    return opened


def remaining_privileges(process: str, user: int, group: int) -> list[str]:
    """The privileges of a process (``self`` or a PID) beyond those of ``user`` and ``group``, by thread, from
    /proc/PID/task/TID/status (proc(5)). Raises OSError if the process does not exist."""
    wanted = {
        "Uid": "\t".join([str(user)] * 4),
        "Gid": "\t".join([str(group)] * 4),
        "Groups": "",
        **dict.fromkeys(("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"), "0" * 16),
        "NoNewPrivs": "1",
    }
    left = []
    for thread in sorted(Path(f"/proc/{process}/task").iterdir()):
        lines = (thread / "status").read_text(encoding="utf-8", errors="replace").splitlines()
        found = {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}
        left += [
            f"{name} {found.get(name, 'missing')!r} (thread {thread.name})"
            for name, value in wanted.items()
            if found.get(name) != value
        ]
    return left


def _user(run_as: str) -> tuple[int, int]:
    """The numbers of ``UID[:GID]``; the default of the GID is the UID."""
    user, _, group = run_as.partition(":")
    numbers = int(user), int(group or user)
    if 0 in numbers:
        raise SettingsError(f"run_as: {run_as!r}: 0 is root; expected UID[:GID] of another user, such as 65534")
    return numbers


def _open_kernel_log(settings: AgentSettings) -> dict[Path, int]:
    # here, not above: it loads re2 and the catalogue
    from muster_checks.dmesg.sources.kmsg import open_kmsg
    from muster_checks.dmesg.stream_factory import choose_source

    own = settings.checks.get("dmesg", CheckSettings())
    if not own.enabled:
        return {}
    values = dict(own.parameters) | ({"path": settings.kmsg} if settings.kmsg is not None else {})
    try:
        parameters = DmesgParameters.model_validate(values)
    except ValidationError:
        return {}  # the start will fail with a better message
    kind, path = choose_source(NodeView(settings.root), parameters)
    if kind is not SourceKind.KMSG:
        return {}
    try:
        return {path: open_kmsg(path)}
    except OSError as error:
        log.warning("%s: cannot open it even as root: %s", path, error.strerror)
        return {}


def _hand_over(folder: Path, user: int, group: int) -> None:
    """Give the state directory and its files to ``user``. Raises SettingsError for a directory with other contents.

    A later start runs as root in a directory that this user could write to, so links are not followed, and files with
    several hard links are not changed. Errors of the disk do not stop the agent, because it must report that node.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        log.warning("state_dir: %s: cannot create or open the directory: %s", folder, error.strerror)
        return
    try:
        names = os.listdir(handle)  # noqa: PTH208 - a descriptor, no path
        theirs = os.fstat(handle).st_uid == user
        if names and not theirs and not {FILE_NAME, LOCK_NAME} & set(names):
            raise SettingsError(
                f"state_dir: {folder}: the directory belongs to another user than {user}, and contains {min(names)!r} "
                f"but no {FILE_NAME}; expected a directory of that user, an empty one, or one of an agent"
            )
        for name in names:
            # files given earlier cannot even be opened by root without DAC_OVERRIDE
            if name.startswith(_OURS) and os.stat(name, dir_fd=handle, follow_symlinks=False).st_uid != user:
                _give_file(handle, name, user, group)
        if not theirs:
            os.fchown(handle, user, group)
    except OSError as error:
        log.warning("state_dir: %s: cannot change the owner to user %d: %s", folder, user, error.strerror)
    finally:
        os.close(handle)


def _give_file(folder: int, name: str, user: int, group: int) -> None:
    handle = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    try:
        found = os.fstat(handle)
        if stat.S_ISREG(found.st_mode) and found.st_nlink == 1:
            os.fchown(handle, user, group)
    finally:
        os.close(handle)


def drop_to(user: int, group: int) -> None:
    """The order matters: each step needs a privilege that a later one drops. Raises OSError."""
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
        if bounded and prctl(_PR_CAPBSET_DROP, capability) < 0:
            raise failure("cannot empty the bounding set")
    if prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL) < 0:
        raise failure("cannot empty the ambient set")
    os.setgroups([])
    os.setresgid(group, group, group)
    os.setresuid(user, user, user)
    ourselves, nothing = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0), (ctypes.c_uint32 * 6)()
    if libc.capset(ourselves, nothing) < 0:
        raise failure("cannot drop capabilities")
    if prctl(_PR_SET_NO_NEW_PRIVS, 1) < 0:
        raise failure("cannot set no_new_privs")
