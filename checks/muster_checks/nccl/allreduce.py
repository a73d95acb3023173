"""Runs `all_reduce_perf` over the node's GPUs and judges its table.

Format (nccl-tests): ``# … device N [bus] MODEL`` lines; a table whose rows begin with the size in bytes and hold time,
algbw, busbw, #wrong, out of place and then in place; ``# Out of bounds values : N OK|FAILED``.
"""

import re
from collections.abc import Mapping, Sequence

import msgspec

from muster_checks.base.bounded_read import Unreadable, integer, number
from muster_checks.base.declaration import NodeView
from muster_checks.base.execution import CannotTell, NotHere, ToolMissing
from muster_checks.base.vocabulary import FaultClass, Finding, Measurement, Verdict, shorten
from muster_checks.cuda.busy_gpus import find_busy_gpus
from muster_checks.hardware.expected_values import load_table
from muster_checks.hardware.pci import nvidia_gpus
from muster_checks.nccl import NcclParameters

TEXT_LIMIT_BYTES = 4 << 20
_DEVICE = re.compile(r"^#.*\bdevice +[0-9]+ +\[[^\]]{1,32}\] +(.{1,128}?)\s*$", re.M)
_BOUNDS = re.compile(r"^# Out of bounds values : +([0-9]{1,12}) +(OK|FAILED)", re.M)


class NcclModel(msgspec.Struct, frozen=True):
    """What ``gpus`` GPUs of this model must reach with messages of ``size_mib`` and more; smaller ones only warn."""

    model: str
    min_bus_bandwidth_gb_per_s: float | None = None
    gpus: int = 8
    size_mib: int = 0
    source: str = ""


class AllReduceRow(msgspec.Struct, frozen=True):
    """One message size: bus bandwidth of both ways, GB/s, and elements that came out wrong (None: not checked)."""

    size_bytes: int
    bus_gb_per_s: tuple[float, ...]
    wrong: int | None


class AllReduceRun(msgspec.Struct, frozen=True):
    models: tuple[str, ...]
    rows: tuple[AllReduceRow, ...]
    out_of_bounds: int | None


async def probe(node: NodeView, parameters: NcclParameters) -> list[Finding]:
    # a GPU that was handed to a virtual machine is not ours to test
    gpus = [gpu for gpu in nvidia_gpus(node) if gpu.driver in ("", "nvidia")]
    if len(gpus) < 2:
        raise NotHere(f"{len(gpus)} NVIDIA GPUs: an all-reduce needs two")
    held = await find_busy_gpus(node)
    size = f"{parameters.size_mib}M"
    argv = ["all_reduce_perf", "-b", size, "-e", size, "-g", str(len(gpus)), "-n", "20", "-w", "5", "-c", "1"]
    output = await node.commands.run(argv, timeout_s=parameters.run_timeout_s)
    if output.missing:
        raise ToolMissing("all_reduce_perf", "nccl-tests (NVIDIA's; built from source)")
    try:
        run = parse(output.stdout)
    except Unreadable as error:
        raise CannotTell(output.trouble or str(error), "NcclFailed") from None
    # it exits with 1 for wrong results, too: those are in the table
    if output.exit_code not in (0, 1) or not (run.rows and run.rows[-1].bus_gb_per_s):
        raise CannotTell(output.trouble or "no row was measured", "NcclFailed")
    return judge(run, parameters, held)


def judge_recorded(text: bytes, parameters: NcclParameters) -> list[Finding] | None:
    if b"busbw" not in text:
        return None
    return judge(parse(text), parameters, {})


def parse(text: bytes) -> AllReduceRun:
    """Raises Unreadable where there is no row of the table."""
    if len(text) > TEXT_LIMIT_BYTES:
        raise Unreadable(f"{len(text) >> 20} MiB: expected the table of all_reduce_perf")
    whole = text.decode("utf-8", "replace")
    # a row cut short must not pass for one of the older table, which has a column less
    columns = (13, 9) if re.search(r"^# +size.* root ", whole, re.M) else (12, 8)
    words = [line.split() for line in whole.splitlines()]
    rows = [row for each in words if len(each) in columns and (row := _row(each)) is not None]
    if not rows:
        raise Unreadable("no table of all_reduce_perf: expected rows of size, count, type, …, busbw")
    bounds = _BOUNDS.search(whole)
    return AllReduceRun(tuple(_DEVICE.findall(whole)), tuple(rows), int(bounds[1]) if bounds else None)


def judge(run: AllReduceRun, parameters: NcclParameters, held: Mapping[str, str]) -> list[Finding]:
    """One finding on the node: an all-reduce goes through all GPUs, and does not tell which of them is slow.

    held: why a low figure proves nothing, by PCI address
    """
    largest = max(run.rows, key=lambda row: row.size_bytes)
    if not largest.bus_gb_per_s:
        raise CannotTell("the largest size has no bandwidth", "NcclFailed")
    reached = min(largest.bus_gb_per_s)
    wrong = max((row.wrong or 0 for row in run.rows), default=0) or run.out_of_bounds or 0
    limit, source, from_bytes = _limit(run, parameters)
    verdict, reason, said, asks = Verdict.PASS, "AllReduced", "correct", FaultClass.NONE
    if wrong:
        verdict, reason, asks = Verdict.FAIL, "WrongResult", FaultClass.CONTACT
        said = f"{wrong} elements came out wrong: run dcgm to find the GPU"
    elif limit is not None and reached < limit:
        verdict, reason, asks = Verdict.FAIL, "SlowAllReduce", FaultClass.CONTACT
        if largest.size_bytes < from_bytes:  # smaller messages are slower on sound machines, too
            verdict, asks = Verdict.WARN, FaultClass.NONE
        said = f"{reached:.4g} GB/s, expected {limit:g} ({source}): see nvlink and pcielink"
        if held:
            address, why = next(iter(held.items()))
            verdict, reason, asks = Verdict.UNKNOWN, "InUse", FaultClass.NONE
            said = f"{reached:.4g} GB/s, which proves nothing: GPU {address}: {why}"
    return [
        Finding(
            component="host",
            verdict=verdict,
            reason=reason,
            message=shorten(f"all-reduce over {len(run.models) or 'all'} GPUs: {said}"),
            fault_class=asks,
            measurements=(
                Measurement("bus_bandwidth", reached, "GB/s", limit),
                Measurement("wrong_elements", wrong, "", 0.0),
            ),
        )
    ]


def _limit(run: AllReduceRun, parameters: NcclParameters) -> tuple[float | None, str, int]:
    """GB/s, whose word that is, and the message size in bytes from which on it holds."""
    if parameters.min_bus_bandwidth_gb_per_s is not None:
        return parameters.min_bus_bandwidth_gb_per_s, "as asked for", 0
    table = load_table(NcclModel, "nccl/models.yaml", parameters.expected)
    known = table.of(run.models[0]) if run.models and len(set(run.models)) == 1 else None
    if known is None or known.gpus != len(run.models):
        return None, "", 0
    return known.min_bus_bandwidth_gb_per_s, known.source, known.size_mib << 20


def _row(words: Sequence[str]) -> AllReduceRow | None:
    """``size count type redop root time algbw busbw #wrong [time algbw busbw #wrong]``; older tables lack ``root``."""
    if not (words[0].isdecimal() and words[1].isdecimal()) or not words[2].isalnum():
        return None
    size = integer(words[0])
    results = words[5:] if len(words) in (9, 13) else words[4:]
    ways = [results[start : start + 4] for start in range(0, len(results) - 3, 4)]
    speeds = [number(way[2]) for way in ways]
    wrongs = [integer(way[3]) for way in ways]
    if size is None or not ways:
        return None
    told = [wrong for wrong in wrongs if wrong is not None]
    return AllReduceRow(size, tuple(s for s in speeds if s is not None and s >= 0), max(told) if told else None)
