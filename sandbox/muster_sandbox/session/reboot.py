"""`muster sandbox reboot NODE`: what a reboot is to an agent: it dies, and comes up under a new boot id.

The agent's process is ended outright, as a reboot does; the sandbox starts it again.
"""

import contextlib
import os
import signal
import uuid
from pathlib import Path

from muster_sandbox.session.folder import SandboxNode
from muster_sandbox.session.kernel_line import ActionRefused

BOOT_ID = "proc/sys/kernel/random/boot_id"
PID_FILE = "agent.pid"


def reboot(node: SandboxNode) -> int:
    """Raises ActionRefused for this machine itself."""
    if not node.simulated:
        raise ActionRefused(
            f"{node.name} is this machine: the sandbox does not reboot it; `muster clear` closes its faults"
        )
    root = Path(node.root)
    new_boot(root)
    # after it: an agent that comes up meanwhile either is the one ended here, or has seen the new boot id
    pid = int((root / PID_FILE).read_text())
    with contextlib.suppress(ProcessLookupError):  # an earlier reboot's: the next one starts with this boot id
        os.kill(pid, signal.SIGKILL)
    print(f"{node.name} rebooted")
    return 0


def new_boot(root: Path) -> None:
    """A new boot id and an empty kernel log under ``root``."""
    (root / BOOT_ID).parent.mkdir(parents=True, exist_ok=True)
    (root / BOOT_ID).write_text(f"{uuid.uuid4()}\n")
    log = root / "dev/kmsg"
    log.parent.mkdir(parents=True, exist_ok=True)
    log.unlink(missing_ok=True)
    log.touch()
