"""Reads in threads: one that hangs takes a single thread, and holds up neither others nor the end of the process."""

import asyncio
import subprocess
import sys
import threading

import pytest
from tests.polling import thread_did

from muster_checks.base.declaration import NodeView
from muster_checks.base.threads import in_thread

NEVER_ENDS = """
import asyncio, threading
from muster_checks.base.declaration import NodeView
from muster_checks.base.threads import in_thread

async def main():
    reading = asyncio.create_task(in_thread(NodeView(), threading.Event().wait))
    await asyncio.sleep(0)
    reading.cancel()

asyncio.run(main())
"""


class Driver:
    def __init__(self) -> None:
        self.reads = 0
        self.answers = threading.Event()

    def read(self) -> int:
        self.reads += 1
        number = self.reads
        self.answers.wait()
        return number


async def test_while_a_read_hangs_no_other_thread_is_taken_and_the_next_one_reads_anew():
    node, driver, turns = NodeView(), Driver(), []
    for _ in range(5):
        turns.append(asyncio.create_task(in_thread(node, driver.read)))
        await asyncio.sleep(0)
    for turn in turns[:4]:
        turn.cancel()
    await asyncio.gather(*turns[:4], return_exceptions=True)
    await thread_did(lambda: driver.reads)
    assert (driver.reads, turns[4].done()) == (1, False)
    driver.answers.set()
    assert await turns[4] == 2


async def test_other_nodes_and_other_reads_do_not_wait_for_one_that_hangs():
    node, driver = NodeView(), Driver()
    hanging = asyncio.create_task(in_thread(node, driver.read))
    await thread_did(lambda: driver.reads)
    assert await in_thread(node, int, "7") == 7
    driver.answers.set()
    assert await in_thread(NodeView(name="node-2"), driver.read) == 2
    assert await hanging == 1


async def test_what_the_read_raises_is_raised():
    with pytest.raises(ValueError, match="invalid literal"):
        await in_thread(NodeView(), int, "seven")


def test_a_process_ends_although_a_read_hangs():
    subprocess.run([sys.executable, "-c", NEVER_ENDS], check=True, timeout=60)
