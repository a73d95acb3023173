"""A sandbox that is killed."""

import os
import time
from pathlib import Path

import pytest
from tests.cluster.commands.running_sandbox import (
    CHANGE_LIMIT_S,
    COMMAND,
    processes_of,
    published_addresses,
    start_sandbox,
    with_own_kernel_log,
)


def test_a_killed_sandbox_leaves_no_process_and_no_address(binaries: Path, tmp_path: Path) -> None:
    folder = tmp_path / "box"
    command = with_own_kernel_log(COMMAND, tmp_path / "kernel.log")
    with pytest.raises(AssertionError, match="left"), start_sandbox(folder, binaries, command=command) as box:  # noqa: PT012
        folders = (box.folder, box.data)
        if os.geteuid() == 0:
            assert published_addresses(folder)
        box.process.kill()
        box.process.wait(timeout=10)
        deadline = time.monotonic() + CHANGE_LIMIT_S
        while (processes_of(*folders) or published_addresses(folder)) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert processes_of(*folders) == []
        assert published_addresses(folder) == []
        raise AssertionError("left as it is: a killed one cannot tidy its folder")
