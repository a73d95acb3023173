"""Log monitors of node-problem-detector for logs other than the kernel's: each becomes a stream check.

It resumes where it stopped, with the same code as the check dmesg; the first time, it reads the whole current boot.
"""

from pathlib import Path
from typing import TypedDict

from muster_checks.base.declaration import Check, CheckStream, Cost, NodeView, Parameters
from muster_checks.base.npd_json import FileRefused, is_of_windows
from muster_checks.dmesg.catalogue.npd_rules import LogMonitor, to_rows
from muster_checks.dmesg.catalogue.types import Catalogue, PatternRow
from muster_checks.dmesg.judge import KernelLogJudge
from muster_checks.dmesg.sources.file import FilePlace, FileSource
from muster_checks.dmesg.sources.journald import JournalPlace, JournalSource
from muster_checks.dmesg.sources.position import load_position, read_boot_id
from muster_checks.dmesg.sources.source import LogSource
from muster_checks.dmesg.sources.timeline import KernelClocks, Timeline
from muster_checks.dmesg.stream import KernelLogStream
from muster_checks.dmesg.stream_factory import find_place, restore
from muster_checks.plugins.filelog import FileLines

_DEFAULT_JOURNALS = ("", "/var/log/journal", "/run/log/journal")  # where journalctl looks by default


def log_check(name: str, monitor: LogMonitor, file: str) -> Check:
    """The check of one log monitor. Raises FileRefused if it cannot work on this system."""
    rows = to_rows(monitor, file)
    if monitor.plugin == "filelog":
        if is_of_windows(monitor.log_path):
            raise FileRefused(f'logPath: "{monitor.log_path}": a Windows path; expected a path on Linux')
        if not monitor.log_path.startswith("/"):
            raise FileRefused(f'logPath: "{monitor.log_path}": expected an absolute path')
        FileLines(monitor, Timeline(KernelClocks()), bytes.isascii)  # validates the settings now
        reads = monitor.log_path
    else:
        if not monitor.plugin_config.get("source"):
            raise FileRefused("pluginConfig.source: missing: a journald monitor needs the identifier to read")
        reads = f"journal entries of {monitor.plugin_config['source']} (journalctl: systemd)"

    def open_stream(
        node: NodeView, _parameters: Parameters, saved: bytes | None, *, clocks: KernelClocks | None = None
    ) -> CheckStream:
        return open_log(node, monitor, rows, saved, clocks or KernelClocks())

    return Check(
        name=name,
        description=f"rules of {file} over {reads}: {', '.join(dict.fromkeys(row.name for row in rows))}",
        cost=Cost.LIGHT,
        parameters=Parameters,
        timeout_s=30.0,
        devices=("host",),
        stream=open_stream,
        reads=reads,
        ran_on="the operator's own rules",
    )


def open_log(
    node: NodeView, monitor: LogMonitor, rows: tuple[PatternRow, ...], saved: bytes | None, clocks: KernelClocks
) -> KernelLogStream:
    boot_id = read_boot_id(node.path("/proc/sys/kernel/random/boot_id"))
    position = load_position(saved)
    name = f"{monitor.plugin}:{monitor.log_path}:{monitor.plugin_config.get('source', '')}"
    if position is not None and position.source != name:
        position = None
    same_boot = position if position is not None and position.boot_id == boot_id else None
    timeline = Timeline(clocks, same_boot.booted if same_boot else None)
    judge = KernelLogJudge(Catalogue({}, {}, rows), clock=timeline.now)
    if same_boot is not None:
        restore(judge, same_boot)
    source: LogSource
    if monitor.plugin == "filelog":
        reader = FileLines(monitor, timeline, judge.interesting)
        source = FileSource(node.path(monitor.log_path), reader, find_place(position, FilePlace) or FilePlace())
    else:
        source = JournalSource(
            timeline,
            judge.interesting,
            find_place(position, JournalPlace) or JournalPlace(),
            boot_id,
            **_selection(node, monitor),
        )
    return KernelLogStream(
        source,
        judge,
        timeline,
        boot_id=boot_id,
        source_name=name,
        gap_at=same_boot.gap_at if same_boot else None,
    )


class _Selection(TypedDict):
    command: tuple[str, ...]
    root: Path


def _selection(node: NodeView, monitor: LogMonitor) -> _Selection:
    command = ("journalctl", "-b", f"--identifier={monitor.plugin_config['source']}")
    if monitor.log_path in _DEFAULT_JOURNALS:
        return {"command": command, "root": node.root}
    # journalctl accepts a folder or a root, but not both
    return {"command": (*command, f"--directory={node.path(monitor.log_path)}"), "root": Path("/")}
