"""The operator, the proxy and a simulated V-IPU controller as the tests start them, but ended with the bench, however
that ends: the reaper kills what is left."""

import asyncio
import re
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from harness.footprint import Footprint, footprint

sys.path.insert(0, str(Path(__file__).parents[3]))

from tests.cluster.ipujob.operator_bed import MODULES, Bed, Program

from muster_sandbox.processes import ManagedProcess, ProcessReaper

LIMIT_S = 1800.0  # far more than anything takes


async def until(done: Callable[[], Awaitable[bool]], what: str) -> None:
    """Raises TimeoutError."""
    deadline = time.monotonic() + LIMIT_S
    while not await done():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {LIMIT_S:.0f} s: {what}")
        await asyncio.sleep(0.1)


@dataclass
class _SupervisedProgram(Program):
    component: ManagedProcess | None = None

    async def stop(self, number: int = 0) -> int:
        assert self.component is not None
        await asyncio.to_thread(self.component.stop)
        return number


@dataclass
class SupervisedBed(Bed):
    """Its programs end with this process, however that ends."""

    reaper: ProcessReaper | None = None

    async def _start(
        self,
        name: str,
        words: tuple[str, ...],
        expected: tuple[str, ...] = ("listening",),
        environ: Mapping[str, str] | None = None,
    ) -> Program:
        assert self.reaper is not None
        log = self.folder / f"{name}.log"
        # env executes the program in its own place
        command = ["env", *(f"{key}={value}" for key, value in (environ or {}).items())]
        command += [sys.executable, "-m", MODULES[words[0]], *words[1:]]
        running = ManagedProcess(name, command, log, self.reaper)
        running.start()
        program = _SupervisedProgram(None, log, {}, running)  # type: ignore[arg-type]  # its process is the component's
        self.programs.append(program)

        async def listens() -> bool:
            running.require_alive()
            program.told.update(re.findall(r"^(\w+) on (\S+)$", log.read_text(), re.MULTILINE))
            return set(expected) <= program.told.keys()

        await until(listens, f"{name} listens")
        return program

    def footprint(self, program: Program | None) -> Footprint:
        assert isinstance(program, _SupervisedProgram)
        assert program.component is not None
        program.component.require_alive()
        assert program.component.pid is not None
        return footprint(program.component.pid)
