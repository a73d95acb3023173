"""Measures the NUMA nodes in sequence, each in a separate process; in parallel they would share the interconnect."""

import signal

import msgspec

from muster_checks.base.commands import Output, python_child
from muster_checks.base.declaration import NodeView
from muster_checks.base.vocabulary import Finding, Verdict
from muster_checks.membw import MembwParameters
from muster_checks.membw.judge import NumaSample, judge
from muster_checks.membw.topology import NumaCpus, read_numa_nodes
from muster_checks.membw.worker import SPARED, MemoryRefused, MemoryReport, MemoryTask, describe_no_room

TIMES_CACHE = 8  # STREAM requires arrays of 4 times the last-level caches, and there are two arrays
DEADLINE_S = 60.0


async def probe(node: NodeView, parameters: MembwParameters) -> list[Finding]:
    nodes = read_numa_nodes(node)
    return judge([await _measure(node, each, parameters, alone=len(nodes) == 1) for each in nodes], parameters)


async def _measure(node: NodeView, numa: NumaCpus, parameters: MembwParameters, *, alone: bool) -> NumaSample:
    size = max(parameters.block_mib << 20, TIMES_CACHE * numa.cache_bytes)
    size += -size % (2 << 20)  # two halves of whole chunks
    if numa.room_bytes is not None and size > SPARED * numa.room_bytes:
        # if memory were bound to a node without free memory, the kernel would kill processes
        trouble = describe_no_room(size, numa.room_bytes, "on this NUMA node")
        return NumaSample(numa.number, numa.memory_bytes, reason="NoRoom", trouble=trouble)
    deadline_s = DEADLINE_S + parameters.seconds
    task = MemoryTask(None if alone else numa.number, numa.cpus, size, parameters.seconds, int(deadline_s) + 5)
    argument = msgspec.json.encode(task).decode()
    output = await node.commands.run(python_child("muster_checks.membw.worker", argument), timeout_s=deadline_s)
    return _read(numa, output)


def _read(numa: NumaCpus, output: Output) -> NumaSample:
    place = numa.number, numa.memory_bytes
    if output.exit_code == -signal.SIGBUS:
        # an uncorrectable memory error, or an unreadable program file; the kernel log shows which
        trouble = "SIGBUS killed the test, perhaps an uncorrectable memory error: see check=dmesg and check=memory"
        return NumaSample(*place, reason="BusError", trouble=trouble, verdict=Verdict.WARN)
    if not output.ok:
        return NumaSample(*place, reason="NotMeasured", trouble=output.trouble)
    try:
        report = msgspec.json.decode(output.stdout, type=MemoryReport | MemoryRefused)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        return NumaSample(*place, reason="NotMeasured", trouble=f"cannot read the test's report: {error}")
    if isinstance(report, MemoryRefused):
        return NumaSample(*place, reason=report.reason, trouble=report.why)
    return NumaSample(*place, report=report)
