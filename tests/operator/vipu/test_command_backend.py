"""A `vipu` program that is not what it should be: nonsense, silence, floods, failures, half an answer."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.operator.vipu.simulator_process import write_vipu
from tests.operator.vipu.test_tables import ALLOCATIONS, DASHES, HEAD, PARTITIONS
from tests.processes import ends_within

from muster_checks.base.commands import LocalCommands, Output
from muster_operator.vipu.command import CommandController
from muster_operator.vipu.controller import NoRoom, VipuError, VipuUnreachable

FAR_S = 300.0
NONE = f"{HEAD}\n{DASHES}\n"
# prints what the words "list partitions" etc. map to; `changes` is code for create, reset and remove
SCRIPT = """
import os, sys, time, signal, pathlib
words = sys.argv[1:]
here = pathlib.Path(sys.argv[0]).parent
(here / "calls").open("a").write(repr(words) + "\\n")
if words[:2] == ["list", "partitions"]:
    text = {partitions!r}
    if (here / "made").exists():
        text = {made!r}
    sys.stdout.write(text)
elif words[:2] == ["list", "allocations"]:
    sys.stdout.write({allocations!r})
else:
{changes}
"""


def _controller(program: Path, seconds: float = FAR_S) -> CommandController:
    return CommandController("10.0.0.1", 8090, program=(str(program),), list_s=seconds, change_s=seconds)


def _vipu(
    folder: Path,
    changes: str = "pass",
    *,
    partitions: str = NONE,
    made: str = PARTITIONS,
    allocations: str = ALLOCATIONS,
) -> CommandController:
    indented = "\n".join(f"    {line}" for line in changes.splitlines())
    body = SCRIPT.format(partitions=partitions, made=made, allocations=allocations, changes=indented)
    return _controller(write_vipu(folder, body))


def _calls(folder: Path) -> list[str]:
    return (folder / "calls").read_text().splitlines()


ALWAYS = {
    "nonsense": "print('lorem ipsum')",
    "binary": "import sys; sys.stdout.buffer.write(bytes(range(256)))",
    "nothing": "pass",
    "half a table": f"print({PARTITIONS[:200]!r})",
    "a failure": "import sys; print('rpc error'); sys.exit(1)",
    "a crash": "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)",
    "a flood": "import sys\nfor _ in range(20): sys.stdout.write('x' * (1 << 20))",
    "a failing flood": "import sys\nfor _ in range(20): sys.stderr.write('x' * (1 << 20))\nsys.exit(1)",
}


@pytest.mark.parametrize("body", ALWAYS.values(), ids=ALWAYS.keys())
async def test_a_broken_program_gives_errors_and_never_a_partition(tmp_path: Path, body: str) -> None:
    controller = _controller(write_vipu(tmp_path, body))
    for call in (
        controller.list_partitions(),
        controller.find_partition("a"),
        controller.create("a", 4, 1),
        controller.remove("a"),
        controller.read_capacity(),
        controller.count_free_blocks(4),
        controller.reset("a"),
    ):
        with pytest.raises(VipuError) as caught:
            await call
        assert "10.0.0.1:8090" in str(caught.value)
        assert len(str(caught.value)) < 1000


async def test_a_program_that_hangs_is_ended_with_all_it_started(tmp_path: Path) -> None:
    body = """
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"])
open(sys.argv[0] + ".pids", "w").write(f"{os.getpid()} {child.pid}")
time.sleep(3600)
"""
    program = write_vipu(tmp_path, body)
    pids = tmp_path / "vipu.pids"
    seconds = 1.0
    while not pids.exists():  # a slow machine: the program must have come so far
        with pytest.raises(VipuUnreachable, match="vipu list partitions"):
            await _controller(program, seconds).list_partitions()
        seconds *= 2
        assert seconds < FAR_S
    for pid in map(int, pids.read_text().split()):
        assert ends_within(pid, 60)


async def test_a_program_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(VipuUnreachable, match="vipu: not found"):
        await _controller(tmp_path / "vipu").list_partitions()


async def test_arguments_are_the_documented_words_one_by_one(tmp_path: Path) -> None:
    controller = _vipu(tmp_path, "(here / 'made').touch()\nprint('create partition (p64): success.')")
    await controller.create("p64", 64, 2)
    server = "'--api-host', '10.0.0.1', '--api-port', '8090'"
    assert _calls(tmp_path) == [
        f"['list', 'partitions', {server}]",
        f"['create', 'partition', 'p64', '--size', '64', '--num-gcds', '2', '--reconfigurable', {server}]",
    ]
    (tmp_path / "calls").unlink()
    with pytest.raises(VipuUnreachable):
        await controller.remove("p64")  # says success of a creation, and it is still listed
    await controller.reset("p64")
    assert _calls(tmp_path)[1] == f"['remove', 'partition', 'p64', '--force', {server}]"
    assert _calls(tmp_path)[3] == f"['reset', 'partition', 'p64', {server}]"


async def test_a_partition_across_racks_is_not_requested_as_reconfigurable(tmp_path: Path) -> None:
    await _vipu(tmp_path, "print('create partition (a): success.')").create("a", 128, 1)
    assert "'--size', '128', '--num-gcds', '1', '--api-host'" in _calls(tmp_path)[1]


async def test_success_without_the_word_counts_when_it_is_listed(tmp_path: Path) -> None:
    controller = _vipu(tmp_path, "(here / 'made').touch()")
    await controller.create("p64", 64, 1)
    await controller.reset("p64")


async def test_success_without_the_word_and_nothing_listed_is_no_answer(tmp_path: Path) -> None:
    controller = _vipu(tmp_path, "print('done')")
    with pytest.raises(VipuUnreachable, match="'done'"):
        await controller.create("p64", 64, 1)
    with pytest.raises(VipuUnreachable):
        await controller.reset("p64")


async def test_success_for_another_partition_is_no_word_of_success(tmp_path: Path) -> None:
    controller = _vipu(tmp_path, "print('create partition (other): success.')")
    with pytest.raises(VipuUnreachable):
        await controller.create("p64", 64, 1)


async def test_a_failure_that_has_made_it_all_the_same_is_no_answer(tmp_path: Path) -> None:
    controller = _vipu(tmp_path, "(here / 'made').touch()\nsys.exit('rpc deadline 4711')")
    with pytest.raises(VipuUnreachable, match=r"rpc deadline 4711"):
        await controller.create("p64", 64, 1)


@pytest.mark.parametrize("ending", ["", "sys.exit('timed out waiting')"])
async def test_a_creation_after_which_nothing_can_be_listed_may_have_made_it(tmp_path: Path, ending: str) -> None:
    controller = _vipu(tmp_path, f"(here / 'made').touch()\n{ending}", made="lorem ipsum")
    with pytest.raises(VipuUnreachable, match="lorem ipsum"):
        await controller.create("p64", 64, 1)


@pytest.mark.parametrize(("size", "kind"), [(16, VipuError), (32, NoRoom)])
async def test_a_failure_is_for_want_of_room_unless_there_must_be_some(
    tmp_path: Path, size: int, kind: type[VipuError]
) -> None:
    controller = _vipu(tmp_path, "sys.exit('rpc error: no')")  # 16 and 8 IPUs, nothing in use
    with pytest.raises(VipuError, match="rpc error: no") as caught:
        await controller.create("a", size, 1)
    assert caught.type is kind


async def test_a_program_that_dies_in_the_midst_of_a_change_has_not_answered(tmp_path: Path) -> None:
    controller = _vipu(tmp_path, "os.kill(os.getpid(), signal.SIGKILL)", partitions=PARTITIONS)
    for call in (controller.create("a", 4, 1), controller.reset("p64"), controller.remove("p64")):
        with pytest.raises(VipuUnreachable, match="killed by SIGKILL"):
            await call


async def test_a_program_that_waits_until_all_is_done_is_waited_for(tmp_path: Path) -> None:
    controller = _vipu(tmp_path, "time.sleep(0.3)\n(here / 'made').touch()\nprint('create partition (p64): success.')")
    await controller.create("p64", 64, 1)
    assert await controller.find_partition("p64") is not None


async def test_an_empty_list_is_believed_only_of_a_program_that_can_list(tmp_path: Path) -> None:
    assert await _vipu(tmp_path, partitions="").list_partitions() == ()
    with pytest.raises(VipuError, match="list allocations"):
        await _vipu(tmp_path, partitions="", allocations="").list_partitions()


async def test_free_blocks_are_those_that_are_free_wherever_the_partitions_are(tmp_path: Path) -> None:
    rows = [("small-1", 1), ("small-2", 2), ("eight", 8)]
    table = "\n".join(
        [" Partition | Size | GCDs | State", "---", *(f" {n} | {s} | 1 | ACTIVE" for n, s in rows), "---"]
    )
    controller = _vipu(tmp_path, partitions=table)  # 16 and 8 IPUs
    blocks = {size: await controller.count_free_blocks(size) for size in (1, 4, 8, 16, 32)}
    assert blocks == {1: 24 - 11, 4: 6 - 2 - 2, 8: 3 - 2 - 1, 16: 0, 32: 0}
    capacity = await controller.read_capacity()
    assert (capacity.total, capacity.free) == (24, 13)


async def test_its_programs_are_few_at_a_time(tmp_path: Path) -> None:
    running = most = 0

    class CountingCommands(LocalCommands):
        async def run(self, argv: Sequence[str], **_: object) -> Output:
            nonlocal running, most
            running += 1
            most = max(most, running)
            try:
                await asyncio.sleep(0)
                return Output(argv=tuple(argv), exit_code=0, stdout=PARTITIONS.encode())
            finally:
                running -= 1

    controller = CommandController("h", 1, commands=CountingCommands())
    await asyncio.gather(*(controller.list_partitions() for _ in range(50)))
    assert most == 4
