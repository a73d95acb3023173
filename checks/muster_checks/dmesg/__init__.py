"""The check ``dmesg``: faults that the kernel logs about GPUs, switches, NICs, disks, memory and itself.

It has two parts. Reading: sources/kmsg.py, file.py and journald.py turn their source into records.KernelLine, stream.py
passes the lines on, and position.py stores the position. Judging: catalogue/ and judge.py decide what a line means.
"""

from collections.abc import Sequence
from dataclasses import replace
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Self

from pydantic import Field, model_validator

from muster_checks.base.declaration import Check, CheckStream, Cost, NodeView, Parameters
from muster_checks.disk import NODE_PATHS

if TYPE_CHECKING:
    from muster_checks.dmesg.catalogue.types import PatternRow


class SourceKind(StrEnum):
    """``AUTO``: /dev/kmsg, or a plain file at its path; the journal if neither exists."""

    AUTO = "auto"
    KMSG = "kmsg"
    FILE = "file"
    JOURNAL = "journal"


class StartPosition(StrEnum):
    """Where to begin without a saved position. For a plain file, ``BOOT`` means its beginning."""

    BOOT = "boot"
    NOW = "now"


class UserLines(StrEnum):
    """Treatment of lines that programs wrote into the kernel log."""

    COUNT = "count"
    REFUSE = "refuse"


class DmesgParameters(Parameters):
    source: SourceKind = Field(default=SourceKind.AUTO, description="source of the kernel messages")
    path: Path | None = Field(
        default=None,
        description="device or file, as a path in this process's file system (default: /dev/kmsg of the node)",
    )
    start: StartPosition = Field(
        default=StartPosition.BOOT,
        description="where to begin without a saved position: at boot, or with new messages only",
    )
    user_lines: UserLines = Field(
        default=UserLines.COUNT,
        description="lines that programs or people wrote into the kernel log from user space: count or refuse them",
    )
    catalogue: Path | None = Field(
        default=None,
        description="rows that add to or change the shipped rows: a YAML file, a log monitor of node-problem-detector "
        "(JSON), or a folder of both",
    )
    complete: bool = Field(
        default=False, description="the file is a saved log: its last line counts even without a newline"
    )

    node_paths: str = Field(
        default=NODE_PATHS,
        max_length=4096,
        description="comma-separated folders; a disk that stops needs a reboot only if it holds one of them",
    )

    @model_validator(mode="after")
    def _path_fits_source(self) -> Self:
        if self.source is SourceKind.JOURNAL and self.path is not None:
            raise ValueError(
                f"path: {str(self.path)!r}: not allowed with source journal; allowed with auto, kmsg and file"
            )
        if self.source is SourceKind.FILE and self.path is None:
            raise ValueError("path: missing: required with source file")
        return self


def _open_stream(
    node: NodeView, parameters: DmesgParameters, position: bytes | None, *, rules: "Sequence[PatternRow]" = ()
) -> CheckStream:
    # imported here because it loads re2 and the catalogue, which the declaration alone does not need
    from muster_checks.dmesg.stream_factory import open_stream

    return open_stream(node, parameters, position, rules=rules)


DMESG = Check(
    name="dmesg",
    description="faults that the kernel and its drivers log (Xid, SXid, PCIe, memory, disks, NICs)",
    cost=Cost.LIGHT,
    parameters=DmesgParameters,
    timeout_s=30.0,
    devices=("gpu", "nvswitch", "nic", "disk", "dimm", "pci", "host"),
    stream=_open_stream,
    reads="/dev/kmsg, else a log file or journalctl (systemd)",
    ran_on="real hardware: the kernel log of a virtual machine (kernel 6.18), with lines written into it; lines of "
    "faulty hardware as public systems recorded them (kernel-log.md names each source); journald on hand-made data",
    examples=("check=dmesg",),
)


def with_rules(check: Check, rules: "Sequence[PatternRow]") -> Check:
    """``check`` (dmesg) with an operator's ``rules`` in addition to its own."""
    return replace(check, stream=partial(_open_stream, rules=tuple(rules)))
