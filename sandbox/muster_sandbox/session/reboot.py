"""`muster sandbox reboot NODE`: simulates a reboot: kills the agent, which starts again with a new boot ID.

The sandbox restarts the killed agent.
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
    """Raises ActionRefused for this machine."""
    if not node.simulated:
        raise ActionRefused(
            f"{node.name} is this machine, which the sandbox does not reboot: use `muster clear` to close its faults"
        )
    root = Path(node.root)
    new_boot(root)
    # after new_boot(): an agent that starts in between is either killed here or has read the new boot ID
    pid = int((root / PID_FILE).read_text())
    with contextlib.suppress(ProcessLookupError):  # killed by an earlier reboot: the next agent reads this boot ID
        os.kill(pid, signal.SIGKILL)
    print(f"{node.name} rebooted")
    return 0


def new_boot(root: Path) -> None:
    """Create a new boot ID and an empty kernel log under ``root``."""
    (root / BOOT_ID).parent.mkdir(parents=True, exist_ok=True)
    (root / BOOT_ID).write_text(f"{uuid.uuid4()}\n")
    log = root / "dev/kmsg"
    log.parent.mkdir(parents=True, exist_ok=True)
    log.unlink(missing_ok=True)
    log.touch()
