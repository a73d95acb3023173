"""The back end that runs Graphcore's ``vipu`` program. Its other options (allocation, user, access key) come from the
program's own configuration, /etc/vipu/vipu-cli.hcl.

Documented and used: `create partition NAME --size N --num-gcds N --reconfigurable`, `reset partition NAME`, `remove
partition NAME --force`, `list partitions`, `list allocations`, `--api-host`, `--api-port`. (Less certain: `--force` is
known from the API call, `reset` from the predecessor vipu-cli, and the port from the program's configuration file.) Not
documented, and how this module handles it:

- the text of a refusal: the module lists the partitions after it. If there is certainly room, it is a refusal of V-IPU,
  otherwise NoRoom, with V-IPU's text.
- the text of success for a partition: exit code 0 counts; without the word "success" the list must agree.
- the IPUs of a partition: ``ipus`` is empty.
- the free aligned blocks: the number that is free wherever V-IPU has placed the partitions; each smaller partition
  counts as a block of its own. There may be more.
- the number of IPUs: four per agent of the allocations (an IPU-Machine has four).
- the output without any partition: a table without rows, or nothing if the allocations can be listed.
"""

import asyncio
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from muster_checks.base.commands import Commands, LocalCommands, Output
from muster_operator.vipu.controller import (
    Capacity,
    NoRoom,
    PartitionExists,
    VipuError,
    VipuPartition,
    VipuUnreachable,
)
from muster_operator.vipu.tables import TableError, parse_allocations, parse_partitions

IPUS_OF_AGENT = 4
# of an IPU-POD64; a partition across GW-Links cannot be reconfigurable (V-IPU user guide, partitions)
IPUS_OF_LINK_DOMAIN = 64
LIST_S = 30.0
CHANGE_S = 150.0  # for a program that waits until the partition is ACTIVE: poprun gives V-IPU 120 s
OUTPUT_LIMIT_BYTES = 4 << 20  # 12,800 partitions need 1.2 MB
AT_ONCE = 4  # concurrent programs
T = TypeVar("T")
_NAME = re.compile(r"[A-Za-z0-9][-._A-Za-z0-9]{0,252}", re.ASCII)  # excludes names that look like an option


class CommandController:
    """A :class:`~muster_operator.vipu.controller.VipuController`. program: the command before the arguments."""

    def __init__(
        self,
        host: str,
        port: int,
        *,
        program: Sequence[str] = ("vipu",),
        commands: Commands | None = None,
        list_s: float = LIST_S,
        change_s: float = CHANGE_S,
    ) -> None:
        self.address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self._server = ("--api-host", host, "--api-port", str(port))
        self._program = tuple(program)
        self._commands = commands if commands is not None else LocalCommands()
        self._list_s = list_s
        self._change_s = change_s
        self._slots = asyncio.Semaphore(AT_ONCE)

    async def list_partitions(self) -> Sequence[VipuPartition]:
        output = await self._run_list("list", "partitions")
        if not output.stdout.strip() and not output.stderr.strip():
            await self._list_allocations()  # listing works, so there are no partitions
            return ()
        return self._read(output, parse_partitions)

    async def find_partition(self, name: str) -> VipuPartition | None:
        return next((each for each in await self.list_partitions() if each.name == name), None)

    async def create(self, name: str, size: int, gcds: int) -> None:
        """If the program waits until the partition is ACTIVE, so does this call."""
        _check_request(name, size)
        if await self.find_partition(name) is not None:
            raise PartitionExists(f"partition {name} exists")
        words = ("create", "partition", name, "--size", str(size), "--num-gcds", str(gcds))
        output = await self._run_change(*words, *(("--reconfigurable",) if size <= IPUS_OF_LINK_DOMAIN else ()))
        if _has_succeeded(output, "create", name):
            return
        try:
            listed = await self.find_partition(name) is not None
        except VipuError as error:
            raise VipuUnreachable(f"{self._describe(output)}; and listing failed: {error}") from error
        if output.exit_code == 0 and listed:
            return
        if output.exit_code == 0 or listed:
            raise VipuUnreachable(f"{self._describe(output)}; the partition is {'' if listed else 'not '}listed")
        if await self.count_free_blocks(size) > 0:
            raise VipuError(self._describe(output))
        raise NoRoom(self._describe(output))

    async def reset(self, name: str) -> None:
        _check_request(name)
        output = await self._run_change("reset", "partition", name)
        if output.exit_code != 0:
            raise VipuError(self._describe(output))
        if not _has_succeeded(output, "reset", name) and await self.find_partition(name) is None:
            raise VipuUnreachable(f"{self._describe(output)}; the partition is not listed")

    async def remove(self, name: str) -> None:
        _check_request(name)
        if await self.find_partition(name) is None:
            return
        output = await self._run_change("remove", "partition", name, "--force")
        if _has_succeeded(output, "remove", name):
            return
        left = await self.find_partition(name)
        if left is None or left.state == "REMOVING":
            return
        if output.exit_code == 0:
            raise VipuUnreachable(f"{self._describe(output)}; the partition is still listed")
        raise VipuError(self._describe(output))

    async def read_capacity(self) -> Capacity:
        total = IPUS_OF_AGENT * sum(map(len, await self._list_allocations()))
        used = sum(partition.size for partition in await self.list_partitions())
        return Capacity(total, max(0, total - used))

    async def count_free_blocks(self, size: int) -> int:
        """A lower bound; see the module."""
        _check_request("size", size)
        # a partition does not span allocations (V-IPU user guide)
        blocks = sum(IPUS_OF_AGENT * len(agents) // size for agents in await self._list_allocations())
        spoilt = sum(max(1, partition.size // size) for partition in await self.list_partitions())
        return max(0, blocks - spoilt)

    async def _list_allocations(self) -> tuple[frozenset[str], ...]:
        return self._read(await self._run_list("list", "allocations"), parse_allocations)

    async def _run_list(self, *words: str) -> Output:
        """Raises VipuUnreachable unless the program printed a list and succeeded."""
        output = await self._run(words, self._list_s)
        if not output.ok:
            raise VipuUnreachable(self._describe(output))
        return output

    async def _run_change(self, *words: str) -> Output:
        """Raises VipuUnreachable if the program did not end normally: it may or may not have changed something."""
        output = await self._run(words, self._change_s)
        if output.exit_code is None or output.exit_code < 0:
            raise VipuUnreachable(self._describe(output))
        return output

    async def _run(self, words: Sequence[str], timeout_s: float) -> Output:
        async with self._slots:
            return await self._commands.run(
                (*self._program, *words, *self._server), timeout_s=timeout_s, limit_bytes=OUTPUT_LIMIT_BYTES
            )

    def _read(self, output: Output, read: Callable[[str], T]) -> T:
        try:
            return read(output.stdout.decode("utf-8"))
        except (TableError, UnicodeDecodeError) as error:
            raise VipuError(f"{self.address}: {' '.join(self._name_command(output))}: {error}") from error

    def _name_command(self, output: Output) -> Sequence[str]:
        return (Path(self._program[-1]).name, *output.argv[len(self._program) :][:2])

    def _describe(self, output: Output) -> str:
        text = output.trouble or f"unexpected output {output.stdout[-200:].decode('utf-8', 'replace').strip()!r}"
        return f"{self.address}: {' '.join(self._name_command(output))}: {text}"


def _has_succeeded(output: Output, verb: str, name: str) -> bool:
    """Whether the output reports success, as in `create agent (ag1): success.`"""
    return output.exit_code == 0 and f"{verb} partition ({name}): success".encode() in output.stdout


def _check_request(name: str, size: int = 1) -> None:
    if not _NAME.fullmatch(name):
        raise VipuError(
            f"name: {name[:80]!r}: expected letters, digits, '-', '.' and '_', beginning with a letter or digit"
        )
    if size < 1 or size & (size - 1):
        raise VipuError(f"size: {size}: expected a power of two")
