"""Drops root: opens what only root may open, then drops all privileges for good, before anything listens.

A container's device cgroup and ``kernel.dmesg_restrict`` restrict /dev/kmsg to root with CAP_SYSLOG. The kernel checks
this only when the file is opened, so a process without privileges can keep reading and rewinding an open descriptor.

What needs root each time, such as a disk's health data, is left to a helper process (tool_helper.py), which is started
before.
"""

import logging
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from pydantic import ValidationError

from muster_agent.checks.state_file import FILE_NAME, LOCK_NAME
from muster_agent.process.capabilities import SYS_ADMIN, SYS_RAWIO, remaining_privileges, switch_user
from muster_agent.process.helper_client import HelperCommands
from muster_agent.process.tool_helper import start_helper
from muster_agent.settings import AgentSettings, CheckSettings
from muster_checks.base.declaration import NodeView
from muster_checks.disk import DiskParameters
from muster_checks.dmesg import DmesgParameters, SourceKind
from muster_kube.process.settings import SettingsError

log = logging.getLogger(__name__)

_OURS = FILE_NAME.partition(".")[0] + "."
_NEEDED = "root with the capabilities CHOWN, SETGID, SETPCAP, SETUID and SYSLOG"


class KeptAccess(NamedTuple):
    """What was opened or started before privileges were dropped.

    opened: file descriptors by path
    helper: runs the tools that need root; None: no check needs it, or this process has kept its privileges
    kernel_log_writer: a descriptor of /dev/kmsg for the lines of canaries; None: not allowed by the settings
    """

    opened: Mapping[Path, int] = {}
    helper: HelperCommands | None = None
    kernel_log_writer: int | None = None


def drop_privileges(settings: AgentSettings) -> KeptAccess:
    """Switch to the user ``settings.run_as`` for good, with no capabilities and no way to gain any.

    Before the switch, it starts the helper process, opens the kernel log if the check dmesg reads a device that can be
    opened (otherwise the check reports the problem), creates the state directory and gives it to the new user. Without
    ``settings.run_as``, it only opens the kernel log for writing if the settings allow that.

    Call it while the process has one thread, because privileges belong to threads; otherwise it raises RuntimeError.
    Raises SettingsError if the process may not drop its privileges, or cannot open what the settings ask for.
    """
    writer = _open_kernel_log_writer(settings)
    if settings.run_as is None:
        return KeptAccess(kernel_log_writer=writer)
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
    helper = _start_helper(settings)
    opened = _open_kernel_log(settings)
    _hand_over(settings.state_directory, user, group)
    try:
        switch_user(user, group)
    except OSError as error:
        raise SettingsError(f"run_as: {settings.run_as!r}: {error}: start the agent as {_NEEDED}") from error
    left = remaining_privileges("self", user, group)
    if left:  # the calls succeeded without effect: do not run with hidden privileges
        raise SettingsError(f"run_as: {settings.run_as!r}: privileges remain after dropping them: {', '.join(left)}")
    log.info(
        "dropped privileges: user %d, group %d, no capabilities; files opened before: %s; helper for disks and BMC: %s",
        user,
        group,
        [str(path) for path in opened],
        "none" if helper is None else "started",
    )
    return KeptAccess(opened, helper, writer)


def _user(run_as: str) -> tuple[int, int]:
    """The numbers of ``UID[:GID]``; the default of the GID is the UID."""
    user, _, group = run_as.partition(":")
    numbers = int(user), int(group or user)
    if 0 in numbers:
        raise SettingsError(f"run_as: {run_as!r}: 0 is root; expected UID[:GID] of another user, such as 65534")
    return numbers


def _start_helper(settings: AgentSettings) -> HelperCommands | None:
    own = settings.checks.get("disk", CheckSettings())
    try:
        smart = own.enabled and DiskParameters.model_validate(own.parameters).smart
    except ValidationError:
        return None  # the start will fail with a better message
    if not smart and not settings.checks.get("ipmi", CheckSettings()).enabled:
        return None
    return HelperCommands(start_helper((SYS_ADMIN, SYS_RAWIO) if smart else ()))


def _kernel_log(settings: AgentSettings) -> Path | None:
    """The device that the check dmesg reads; None if it reads something else, or is disabled."""
    # here, not above: it loads re2 and the catalogue
    from muster_checks.dmesg.stream_factory import choose_source

    own = settings.checks.get("dmesg", CheckSettings())
    if not own.enabled:
        return None
    values = dict(own.parameters) | ({"path": settings.kmsg} if settings.kmsg is not None else {})
    try:
        parameters = DmesgParameters.model_validate(values)
    except ValidationError:
        return None  # the start will fail with a better message
    kind, path = choose_source(NodeView(settings.root), parameters)
    return path if kind is SourceKind.KMSG else None


def _open_kernel_log_writer(settings: AgentSettings) -> int | None:
    if not settings.canary_kernel_line:
        return None
    path = _kernel_log(settings)
    if path is None:
        raise SettingsError(
            "canary_kernel_line: true: the check dmesg does not read /dev/kmsg, so nobody would read the lines: "
            "enable it, or remove canary_kernel_line"
        )
    try:
        opened = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise SettingsError(f"canary_kernel_line: true: cannot write to {path}: {error.strerror}") from error
    if stat.S_ISCHR(os.fstat(opened).st_mode):
        return opened
    os.close(opened)
    raise SettingsError(f"canary_kernel_line: true: {path} is not a device")


def _open_kernel_log(settings: AgentSettings) -> dict[Path, int]:
    from muster_checks.dmesg.sources.kmsg import open_kmsg

    path = _kernel_log(settings)
    if path is None:
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
