"""Reads the memory counters and passes them to the judges."""

from collections.abc import Sequence

from muster_checks.base.bounded_read import Unreadable
from muster_checks.base.counter_history import read_series
from muster_checks.base.declaration import NodeView
from muster_checks.base.vocabulary import Finding, Verdict
from muster_checks.memory import MemoryParameters
from muster_checks.memory.edac import Dimm, read_dimms
from muster_checks.memory.judge import counter_name, judge_dimms, judge_host_memory
from muster_checks.memory.meminfo import parse_host_memory, read_host_memory


async def probe(node: NodeView, parameters: MemoryParameters) -> list[Finding]:
    dimms: list[Dimm] = []

    async def read() -> dict[str, float]:
        dimms[:] = read_dimms(node)
        return {counter_name(dimm): float(dimm.corrected) for dimm in dimms if dimm.corrected is not None}

    # without EDAC there is no counter, so a first run does not need a second reading
    waits = not node.history.noted("memory") and bool(read_dimms(node))
    first_interval_s = parameters.first_interval_s if waits else 0.0
    series = await read_series(node.history, "memory", read, first_interval_s)
    findings = judge_dimms(dimms, series, parameters)
    try:
        return findings + judge_host_memory(read_host_memory(node), parameters)
    except Unreadable as error:
        message = f"/proc/meminfo: {error}"
        return [*findings, Finding(component="host", verdict=Verdict.UNKNOWN, reason="NotReadable", message=message)]


def judge_recorded(text: bytes, parameters: MemoryParameters) -> Sequence[Finding] | None:
    """The text of /proc/meminfo."""
    if b"MemTotal:" not in text[:4096]:
        return None
    return judge_host_memory(parse_host_memory(text[: 1 << 20].decode("utf-8", "replace")), parameters)
