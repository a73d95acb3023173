"""`muster sandbox inject NODE LINE`: writes a line to the kernel log that the node's agent reads."""

import time
from pathlib import Path

from muster_sandbox.session.folder import SandboxNode

RECORD_LIMIT_BYTES = 992  # the kernel rejects more than LOG_LINE_MAX (1,024) including its prefix: EINVAL


class ActionRefused(Exception):
    """The action is not possible; the message says why."""


def check_record(line: str) -> str:
    """``line`` as one record. Raises ActionRefused if it is empty, has line breaks, or is too long."""
    text = line.strip("\n")
    if not text.strip():
        raise ActionRefused("the line is empty")
    if "\n" in text:
        raise ActionRefused("the text has several lines: inject each line separately")
    if (size := len(text.encode())) > RECORD_LIMIT_BYTES:
        raise ActionRefused(f"the line has {size} bytes: the kernel accepts at most {RECORD_LIMIT_BYTES}")
    return text


def inject_line(node: SandboxNode, line: str) -> None:
    """Write ``line`` as the kernel shows it. In this machine's log it is a line from user space (facility 1)."""
    text = check_record(line)
    if not node.simulated:
        # opened for each record, because /dev/kmsg silently limits the rate per open file (printk_devkmsg=ratelimit)
        with Path(node.kmsg).open("wb", buffering=0) as device:
            device.write(f"<12>{text}\n".encode())  # user.warning: NVRM prints at level 4 too
        return
    log = Path(node.kmsg)
    with log.open("r+b", buffering=0) as file:
        sequence = sum(chunk.count(b"\n") for chunk in iter(lambda: file.read(1 << 16), b""))
        file.write(f"4,{sequence},{time.monotonic_ns() // 1000},-;{text}\n".encode())
