"""Measures each NUMA node in a process of its own, one after another: side by side they would share what joins them."""

import signal

import msgspec

from muster_checks.base.commands import Output, python_child
from muster_checks.base.declaration import NodeView
from muster_checks.base.vocabulary import Finding, Verdict
from muster_checks.membw import MembwParameters
from muster_checks.membw.judge import NumaSample, judge
from muster_checks.membw.topology import NumaCpus, read_numa_nodes
from muster_checks.membw.worker import SPARED, MemoryRefused, MemoryReport, MemoryTask

TIMES_CACHE = 8  # STREAM asks for arrays of 4 times the last-level caches; there are two
DEADLINE_S = 60.0


async def probe(node: NodeView, parameters: MembwParameters) -> list[Finding]:
    nodes = read_numa_nodes(node)
    return judge([await _measure(node, each, parameters, alone=len(nodes) == 1) for each in nodes], parameters)


async def _measure(node: NodeView, numa: NumaCpus, parameters: MembwParameters, *, alone: bool) -> NumaSample:
    size = max(parameters.block_mib << 20, TIMES_CACHE * numa.cache_bytes)
    size += -size % (2 << 20)  # two halves of whole chunks
    if numa.room_bytes is not None and size > SPARED * numa.room_bytes:
        # memory bound to a node that has none left would bring the kernel to kill somebody
        said = f"{size >> 20} MiB to be taken, {numa.room_bytes >> 20} MiB free there"
        return NumaSample(numa.number, numa.memory_bytes, reason="NoRoom", trouble=said)
    deadline_s = DEADLINE_S + parameters.seconds
    task = MemoryTask(None if alone else numa.number, numa.cpus, size, parameters.seconds, int(deadline_s) + 5)
    argument = msgspec.json.encode(task).decode()
    output = await node.commands.run(python_child("muster_checks.membw.worker", argument), timeout_s=deadline_s)
    return _read(numa, output)


def _read(numa: NumaCpus, output: Output) -> NumaSample:
    place = numa.number, numa.memory_bytes
    if output.exit_code == -signal.SIGBUS:
        # an uncorrectable error in what it read; or its program's file could not be read. The kernel log tells which
        said = "the test was killed by SIGBUS: an uncorrectable memory error? See check=dmesg and check=memory"
        return NumaSample(*place, reason="BusError", trouble=said, verdict=Verdict.WARN)
    if not output.ok:
        return NumaSample(*place, reason="NotMeasured", trouble=output.trouble)
    try:
        report = msgspec.json.decode(output.stdout, type=MemoryReport | MemoryRefused)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        return NumaSample(*place, reason="NotMeasured", trouble=f"the test's report cannot be read: {error}")
    if isinstance(report, MemoryRefused):
        return NumaSample(*place, reason=report.reason, trouble=report.why)
    return NumaSample(*place, report=report)
