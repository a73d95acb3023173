"""`muster sandbox reboot`: as often as one likes."""

from pathlib import Path

from muster_sandbox.session.folder import SandboxNode
from muster_sandbox.session.reboot import BOOT_ID, PID_FILE, new_boot, reboot


def test_a_node_whose_agent_is_just_down_comes_up_with_a_new_boot_id(tmp_path: Path) -> None:
    new_boot(tmp_path)
    first = (tmp_path / BOOT_ID).read_text()
    (tmp_path / PID_FILE).write_text(f"{2**22 + 1}\n")  # above the kernel's highest pid
    assert reboot(SandboxNode(name="sim-1", kmsg="", root=str(tmp_path), simulated=True)) == 0
    assert (tmp_path / BOOT_ID).read_text() != first
