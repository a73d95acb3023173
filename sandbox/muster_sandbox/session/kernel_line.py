"""`muster sandbox inject NODE LINE`: write a kernel line where the node's agent reads its kernel log."""

import time
from pathlib import Path

from muster_sandbox.session.folder import SandboxNode

RECORD_LIMIT_BYTES = 992  # the kernel refuses more than LOG_LINE_MAX (1,024) with its prefix: EINVAL


class ActionRefused(Exception):
    """The line cannot be written; the text says why."""


def check_record(line: str) -> str:
    """``line`` as one record. Raises ActionRefused for an empty one, one with line breaks, or one that is too long."""
    text = line.strip("\n")
    if not text.strip():
        raise ActionRefused("the line is empty")
    if "\n" in text:
        raise ActionRefused("a record is one line; inject the others one by one")
    if (size := len(text.encode())) > RECORD_LIMIT_BYTES:
        raise ActionRefused(f"the line has {size} bytes; the kernel takes at most {RECORD_LIMIT_BYTES}")
    return text


def inject_line(node: SandboxNode, line: str) -> None:
    """Write ``line`` as the kernel would show it. This machine's own log gets it from user space (facility 1)."""
    text = check_record(line)
    if not node.simulated:
        # opened anew for each record: /dev/kmsg limits the rate of each open file silently (printk_devkmsg=ratelimit)
        with Path(node.kmsg).open("wb", buffering=0) as device:
            device.write(f"<12>{text}\n".encode())  # user.warning: NVRM prints at level 4 too
        return
    log = Path(node.kmsg)
    with log.open("r+b", buffering=0) as file:
        sequence = sum(chunk.count(b"\n") for chunk in iter(lambda: file.read(1 << 16), b""))
        file.write(f"4,{sequence},{time.monotonic_ns() // 1000},-;{text}\n".encode())
