"""The check ``dmesg``: what the kernel says of GPUs, switches, NICs, disks, memory and itself.

A room of two halves. Reading: sources/kmsg.py, file.py and journald.py turn their source into records.KernelLine,
stream.py hands them on, position.py keeps the place. Judging: catalogue/ and judge.py say what a line means.
"""

from collections.abc import Sequence
from dataclasses import replace
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Self

from pydantic import Field, model_validator

from muster_checks.base.declaration import Check, CheckStream, Cost, NodeView, Parameters

if TYPE_CHECKING:
    from muster_checks.dmesg.catalogue.types import PatternRow


class SourceKind(StrEnum):
    """``AUTO``: /dev/kmsg; a plain file in its place is followed; the journal where neither is there."""

    AUTO = "auto"
    KMSG = "kmsg"
    FILE = "file"
    JOURNAL = "journal"


class StartPosition(StrEnum):
    """Where to begin without a saved position. ``BOOT`` means for a plain file: at its beginning."""

    BOOT = "boot"
    NOW = "now"


class UserLines(StrEnum):
    """What becomes of lines that programs wrote into the kernel log."""

    COUNT = "count"
    REFUSE = "refuse"


class DmesgParameters(Parameters):
    source: SourceKind = Field(default=SourceKind.AUTO, description="where kernel messages are read")
    path: Path | None = Field(
        default=None, description="device or file, as this process sees it (default: /dev/kmsg of the node)"
    )
    start: StartPosition = Field(
        default=StartPosition.BOOT,
        description="without a saved position: all since boot, or only what comes from now on",
    )
    user_lines: UserLines = Field(default=UserLines.COUNT, description="lines that programs wrote into the kernel log")
    catalogue: Path | None = Field(
        default=None,
        description="rows that add to or change the shipped ones: a YAML file, a log monitor of node-problem-detector "
        "(JSON), or a folder of both",
    )
    complete: bool = Field(
        default=False, description="the file is a saved log: its last line counts without a newline, too"
    )

    @model_validator(mode="after")
    def _path_fits_source(self) -> Self:
        if self.source is SourceKind.JOURNAL and self.path is not None:
            raise ValueError(f"path: {str(self.path)!r}: source journal has none; allowed with auto, kmsg and file")
        if self.source is SourceKind.FILE and self.path is None:
            raise ValueError("path: missing: source file needs one")
        return self


def _open_stream(
    node: NodeView, parameters: DmesgParameters, position: bytes | None, *, rules: "Sequence[PatternRow]" = ()
) -> CheckStream:
    # here, not above: it loads re2 and the catalogue, which who only asks for the declaration does not need
    from muster_checks.dmesg.stream_factory import open_stream

    return open_stream(node, parameters, position, rules=rules)


DMESG = Check(
    name="dmesg",
    description="faults that kernel and drivers report in the kernel log (Xid, SXid, PCIe, memory, disks, NICs)",
    cost=Cost.LIGHT,
    parameters=DmesgParameters,
    timeout_s=30.0,
    devices=("gpu", "nvswitch", "nic", "disk", "dimm", "pci", "host"),
    stream=_open_stream,
    reads="/dev/kmsg, else a log file or journalctl (systemd)",
    ran_on="real hardware: the kernel log of a virtual machine (kernel 6.18), with lines written into it; lines of "
    "broken hardware as recorded by public systems (kernel-log.md names each one's source); journald on hand-made data",
    examples=("check=dmesg",),
)


def with_rules(check: Check, rules: "Sequence[PatternRow]") -> Check:
    """``check`` (dmesg) with ``rules`` of an operator's beside its own."""
    return replace(check, stream=partial(_open_stream, rules=tuple(rules)))
