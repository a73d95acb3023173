"""A user without any privilege mounts a tmpfs in a user namespace; the kernel quotes the unknown option in its log."""

import asyncio
import subprocess
import sys

import pytest
from tests.machine import needs, require

from muster_checks.base.declaration import AllClear, NodeView, Sign
from muster_checks.base.vocabulary import Verdict
from muster_checks.dmesg import DMESG, DmesgParameters, StartPosition, UserLines

FORGED = ("NVRM: Xid (PCI:0000:fe:00): 79", "NVRM: GPU 0000:fe:00.0: GPU has fallen off the bus.")
MOUNT = "import ctypes, sys; ctypes.CDLL(None).mount(b'none', b'/tmp', b'tmpfs', 0, sys.argv[1].encode())"


def mount_all() -> None:
    for option in (*FORGED, *(f"x\n{text}" for text in FORGED)):
        words = ["unshare", "--user", "--map-root-user", "--mount", sys.executable, "-c", MOUNT, option]
        subprocess.run(words, check=True, timeout=60, capture_output=True)


@pytest.mark.kmsg
@needs("/dev/kmsg")
async def test_a_mount_option_in_a_user_namespace_makes_no_fault_and_ends_none() -> None:
    require("unshare")
    parameters = DmesgParameters(start=StartPosition.NOW, user_lines=UserLines.REFUSE)
    stream = DMESG.stream(NodeView(), parameters, None)  # type: ignore[misc]  # dmesg is a stream
    events: list[Sign | AllClear] = []

    async def collect() -> None:
        async for some in stream.events():
            events.extend(some)

    reading = asyncio.ensure_future(collect())
    await stream.drain()
    await asyncio.to_thread(mount_all)
    await stream.drain()
    reading.cancel()
    assert [event for event in events if isinstance(event, AllClear) or event.verdict is Verdict.FAIL] == []
