"""Reads the CPUs' files in a thread: with many CPUs and processes this takes a tenth of a second."""

from muster_checks.base.counter_history import read_series
from muster_checks.base.declaration import NodeView
from muster_checks.base.threads import in_thread
from muster_checks.base.vocabulary import Finding
from muster_checks.cpu import CpuParameters
from muster_checks.cpu.counters import read_interrupts, read_throttling
from muster_checks.cpu.judge import CpuReading, judge
from muster_checks.cpu.process_states import read_processes
from muster_checks.cpu.topology import read_topology


def read_cpus(node: NodeView) -> CpuReading:
    return CpuReading(
        topology=read_topology(node),
        throttling=tuple(read_throttling(node)),
        interrupts=read_interrupts(node),
        processes=read_processes(node),
    )


async def probe(node: NodeView, parameters: CpuParameters) -> list[Finding]:
    newest: list[CpuReading] = []

    async def read() -> dict[str, float]:
        newest[:] = [await in_thread(node, read_cpus, node)]
        return newest[0].counters()

    series = await read_series(node.history, "cpu", read, parameters.first_interval_s)
    return judge(newest[0], series, node.history.clock(), parameters)
