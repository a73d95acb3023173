"""From root to nobody: what only root may open is opened, then every right goes for good, before anything listens.

A container's device cgroup and ``kernel.dmesg_restrict`` keep /dev/kmsg from everybody but root with CAP_SYSLOG. The
kernel asks at the opening only, so a descriptor that was opened in time is read on, and set back to its oldest record,
by a process that has no right left.

Capabilities and prctl are asked of libc through ctypes (0.5 MB): Python's os has neither, python-prctl needs a compiler
and libcap's headers, and a tool such as setpriv would have to be in every image. What is left is read here and not by
psutil, which knows no capabilities and no threads' own rights.
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
    """Becomes ``settings.run_as`` for good, with no capability and no way to gain one.

    Returns what was opened before, by path: the kernel's log, where the check dmesg reads a device that can be opened;
    what cannot, the check says. The folder of the state is made before and given to the new user.

    Call it while the process has one thread, since a right belongs to a thread; RuntimeError otherwise. Raises
    SettingsError when the process may not do so.
    """
    if settings.run_as is None:
        return {}
    user, group = _user(settings.run_as)
    if os.geteuid() != 0:
        raise SettingsError(
            f"run_as: {settings.run_as!r}: this process is user {os.geteuid()}, and only root can become another; "
            "expected a start as root, or no run_as"
        )
    threads = os.listdir("/proc/self/task")  # noqa: PTH208 - names, no paths
    if len(threads) != 1:
        raise RuntimeError(f"rights dropped with {len(threads)} threads running; the others would keep theirs")
    opened = _open_kernel_log(settings)
    _hand_over(settings.state_directory, user, group)
    try:
        _drop(user, group)
    except OSError as error:
        raise SettingsError(f"run_as: {settings.run_as!r}: {error}; expected a start as {_NEEDED}") from error
    left = rights_left("self", user, group)
    if left:  # a kernel that says yes and does no: better no agent than one that only seems harmless
        raise SettingsError(f"run_as: {settings.run_as!r}: rights are left after their drop: {', '.join(left)}")
    log.info("user %d, group %d, no capabilities; opened before: %s", user, group, [str(path) for path in opened])
    return opened


def rights_left(process: str, user: int, group: int) -> list[str]:
    """What a process (``self`` or a number) has beyond those of ``user`` and ``group``, by thread; as its
    /proc/PID/task/TID/status says (proc(5)). Raises OSError when there is none."""
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
    """The numbers of ``UID[:GID]``; the group is the user's number where none is named."""
    user, _, group = run_as.partition(":")
    numbers = int(user), int(group or user)
    if 0 in numbers:
        raise SettingsError(f"run_as: {run_as!r}: 0 is root; expected UID[:GID] of somebody else, such as 65534")
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
        return {}  # the start ends over it in a moment, with its place and what is allowed
    kind, path = choose_source(NodeView(settings.root), parameters)
    if kind is not SourceKind.KMSG:
        return {}
    try:
        return {path: open_kmsg(path)}
    except OSError as error:
        log.warning("%s cannot be opened, by root either: %s", path, error.strerror)
        return {}


def _hand_over(folder: Path, user: int, group: int) -> None:
    """The state's folder and files belong to ``user`` from now on. Raises SettingsError for a folder of somebody else.

    A later start is root again in a folder that this user has written to: links are not followed, and a file that has
    a second name elsewhere is not given away. A disk that refuses stops nobody: its node is the one to be reported.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        log.warning("state_dir: %s: no folder to keep: %s", folder, error.strerror)
        return
    try:
        names = os.listdir(handle)  # noqa: PTH208 - a descriptor, no path
        theirs = os.fstat(handle).st_uid == user
        if names and not theirs and not {FILE_NAME, LOCK_NAME} & set(names):
            raise SettingsError(
                f"state_dir: {folder}: is not user {user}'s, and holds {min(names)!r} but no {FILE_NAME}; expected a "
                "folder of that user, an empty one, or an agent's"
            )
        for name in names:
            # those given earlier cannot even be opened any more, by a root without DAC_OVERRIDE
            if name.startswith(_OURS) and os.stat(name, dir_fd=handle, follow_symlinks=False).st_uid != user:
                _give_file(handle, name, user, group)
        if not theirs:
            os.fchown(handle, user, group)
    except OSError as error:
        log.warning("state_dir: %s: cannot be given to user %d: %s", folder, user, error.strerror)
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


def _drop(user: int, group: int) -> None:
    """The order matters: each step needs a right that a later one takes. Raises OSError."""
    import ctypes  # here: 0.5 MB that only who drops rights needs

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
            break  # this kernel knows no more of them
        if bounded and prctl(_PR_CAPBSET_DROP, capability) < 0:
            raise failure("its bounding set cannot be emptied")
    if prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL) < 0:
        raise failure("its ambient set cannot be emptied")
    os.setgroups([])
    os.setresgid(group, group, group)
    os.setresuid(user, user, user)
    ourselves, nothing = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0), (ctypes.c_uint32 * 6)()
    if libc.capset(ourselves, nothing) < 0:
        raise failure("its capabilities cannot be given up")
    if prctl(_PR_SET_NO_NEW_PRIVS, 1) < 0:
        raise failure("no_new_privs cannot be set")
