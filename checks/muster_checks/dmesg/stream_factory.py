"""Builds the stream: chooses the source, the position to continue from, and the judge's saved state."""

import logging
import shutil
import stat
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

import msgspec

from muster_checks.base.declaration import LogEcho, NodeView
from muster_checks.dmesg import DmesgParameters, SourceKind, StartPosition, UserLines
from muster_checks.dmesg.catalogue.loader import load_catalogue
from muster_checks.dmesg.catalogue.row_file import check_size
from muster_checks.dmesg.catalogue.types import PatternRow
from muster_checks.dmesg.device_names import is_node_process, sysfs_names
from muster_checks.dmesg.judge import KernelLogJudge
from muster_checks.dmesg.node_disks import is_loop_device, node_disks
from muster_checks.dmesg.sources.kmsg import KmsgDevice, KmsgPlace, KmsgReader, KmsgSource
from muster_checks.dmesg.sources.position import Position, load_position, read_boot_id
from muster_checks.dmesg.sources.source import Interesting, LogSource
from muster_checks.dmesg.sources.timeline import KernelClocks, SavedTimeline, Timeline
from muster_checks.dmesg.stream import KernelLogStream

_log = logging.getLogger(__name__)
_Place = TypeVar("_Place", bound=msgspec.Struct)


def open_stream(
    node: NodeView,
    parameters: DmesgParameters,
    saved: bytes | None,
    *,
    rules: Sequence[PatternRow] = (),
    clocks: KernelClocks | None = None,
    device: Callable[[Path], KmsgReader] | None = None,
) -> KernelLogStream:
    """The stream of a node's kernel log, continuing from ``saved``.

    ``rules``: rows from the folder of plug-ins, in addition to those of the catalogue.
    After a reboot the judge starts without the state in ``saved``: old faults are over, or the new boot logs them
    again. Raises CatalogueError for an invalid user catalogue. A source that cannot be read is not an error here.
    """
    boot_id = read_boot_id(node.path("/proc/sys/kernel/random/boot_id"))
    position = load_position(saved)
    same_boot = position if position is not None and position.boot_id == boot_id else None
    clocks = clocks or KernelClocks()
    timeline = (
        SavedTimeline(clocks) if parameters.complete else Timeline(clocks, same_boot.booted if same_boot else None)
    )
    catalogue = load_catalogue(parameters.catalogue)
    if rules:
        catalogue = catalogue.with_rows(rules)
        check_size("catalogue and plug-ins", catalogue.rows)
    judge = KernelLogJudge(
        catalogue,
        refuse_user=parameters.user_lines is UserLines.REFUSE,
        names=sysfs_names(node),
        # the processes of a saved log are not those of this node
        of_node=(lambda _pid, _name: True) if parameters.complete else partial(is_node_process, node),
        # nor are its disks
        of_node_disk=(lambda disk: not is_loop_device(disk))
        if parameters.complete
        else node_disks(node, parameters.node_paths),
        clock=timeline.now,
    )
    if same_boot is not None:
        restore(judge, same_boot)
    kind, path = choose_source(node, parameters)
    source_name = f"{kind}:{path}"
    if position is not None and position.source != source_name:
        _log.warning(
            "the source of the kernel log changed from %s to %s: reading starts from the beginning",
            position.source,
            source_name,
        )
        position = None
    return KernelLogStream(
        _open_source(
            kind,
            path,
            node,
            parameters,
            position,
            boot_id,
            timeline,
            _with_echo(judge.interesting, node.echo),
            device or (lambda path: KmsgDevice(path, node.opened.get(path))),
        ),
        judge,
        timeline,
        boot_id=boot_id,
        source_name=source_name,
        gap_at=same_boot.gap_at if same_boot else None,
        echo=node.echo,
    )


def _with_echo(interesting: Interesting, echo: LogEcho | None) -> Interesting:
    return interesting if echo is None else lambda text: echo.may_be_in(text) or interesting(text)


def choose_source(node: NodeView, parameters: DmesgParameters) -> tuple[SourceKind, Path]:
    """The kind of source and its path (for the journal: the node's root)."""
    path = parameters.path or node.path("/dev/kmsg")
    if parameters.source is SourceKind.JOURNAL:
        return SourceKind.JOURNAL, node.root
    if parameters.source is not SourceKind.AUTO:
        return parameters.source, path
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        if parameters.path is not None:
            return SourceKind.FILE, path  # a device exists from boot; a file may be created later
        if shutil.which("journalctl") and _has_journal(node):
            return SourceKind.JOURNAL, node.root
        return SourceKind.KMSG, path
    except OSError:
        return SourceKind.KMSG, path  # opening it reports the error
    return (SourceKind.KMSG if stat.S_ISCHR(mode) else SourceKind.FILE), path


def _has_journal(node: NodeView) -> bool:
    folders = (node.path("/run/log/journal"), node.path("/var/log/journal"))
    try:
        return any(folder.is_dir() and any(folder.iterdir()) for folder in folders)
    except OSError:
        return False


def _open_source(
    kind: SourceKind,
    path: Path,
    node: NodeView,
    parameters: DmesgParameters,
    position: Position | None,
    boot_id: str,
    timeline: Timeline,
    interesting: Interesting,
    device: Callable[[Path], KmsgReader],
) -> LogSource:
    skipping = position is None and parameters.start is StartPosition.NOW
    # imported here because an agent uses only one source
    if kind is SourceKind.FILE:
        from muster_checks.dmesg.sources.file import FilePlace, FileSource
        from muster_checks.dmesg.sources.text_formats import TextReader

        file_place = find_place(position, FilePlace) or FilePlace(skipping=skipping)
        return FileSource(path, TextReader(timeline, interesting), file_place, complete=parameters.complete)
    if kind is SourceKind.JOURNAL:
        from muster_checks.dmesg.sources.journald import JournalPlace, JournalSource

        journal_place = find_place(position, JournalPlace) or JournalPlace(skipping=skipping)
        return JournalSource(timeline, interesting, journal_place, boot_id, root=node.root)
    kmsg_place = find_place(position, KmsgPlace) or KmsgPlace(skipping=skipping)
    if position is not None and position.boot_id != boot_id:
        kmsg_place = KmsgPlace(seq=-1)  # numbers begin at 0: those below the oldest record were lost in this boot
    return KmsgSource(path, timeline, interesting, kmsg_place, device)


def find_place(position: Position | None, kind: type[_Place]) -> _Place | None:
    """The place in ``position`` for a source of that kind; None if it has none."""
    if position is None:
        return None
    try:
        return msgspec.json.decode(position.place, type=kind)
    except msgspec.DecodeError as error:
        _log.warning("cannot decode the saved place in the kernel log: %s: reading starts from the beginning", error)
        return None


def restore(judge: KernelLogJudge, position: Position) -> None:
    """Restore the judge's state; if it cannot be decoded, the judge starts without state."""
    try:
        trouble = judge.restore(msgspec.json.decode(position.judge))
    except msgspec.DecodeError as error:
        trouble = str(error)
    if trouble:
        _log.warning("cannot restore the saved state of the kernel log judge: %s: it starts without state", trouble)
