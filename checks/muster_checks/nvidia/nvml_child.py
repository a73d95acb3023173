"""Reads all GPUs through NVML and prints them as JSON: `python -m muster_checks.nvidia.nvml_child`.

It runs as a separate process, because a faulty driver can make its caller crash or hang in the kernel. If one call
fails, its field stays empty and :attr:`Gpu.errors` names it, unless the driver reported "not supported". After the
first call that reports a lost GPU, no more calls go to it, because each may take seconds.

Calls and field numbers: NVML API Reference Guide (docs.nvidia.com/deploy/nvml-api), as in nvidia-ml-py.
"""

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from muster_checks.nvidia.gpu import (
    BankHistogram,
    ClocksEvent,
    Ecc,
    EccCounts,
    Gpu,
    GpuClocks,
    GpuFabric,
    GpuReading,
    NvLink,
    NvmlReply,
    Pcie,
    Power,
    RecoveryAction,
    RemappedRows,
    RetiredPages,
    Temperature,
)
from muster_checks.nvidia.nvml_config import read_config
from muster_checks.nvidia.nvml_query import LOST, GpuLost, NvmlQuery

EVENTS = {
    0x1: ClocksEvent.IDLE,
    0x2: ClocksEvent.APPLICATION_CLOCKS,
    0x4: ClocksEvent.SW_POWER_CAP,
    0x8: ClocksEvent.HW_SLOWDOWN,
    0x10: ClocksEvent.SYNC_BOOST,
    0x20: ClocksEvent.SW_THERMAL,
    0x40: ClocksEvent.HW_THERMAL,
    0x80: ClocksEvent.HW_POWER_BRAKE,
    0x100: ClocksEvent.DISPLAY_CLOCKS,
}
RECOVERY = tuple(RecoveryAction)  # in the order of nvmlDeviceGpuRecoveryAction_t
VERSIONS = {1: "1.0", 2: "2.0", 3: "2.2", 4: "3.0", 5: "3.1", 6: "4.0", 7: "5.0", 8: "6.0"}
REMOTES = {0: "gpu", 1: "npu", 2: "switch"}
FABRIC_STATES = {0: "not-supported", 1: "not-started", 2: "in-progress", 3: "completed"}
SUMMARIES = {1: "healthy", 2: "unhealthy", 3: "limited-capacity"}
MISCONFIGURED = {
    1: "",
    2: "incorrect system GUID",
    3: "incorrect chassis serial number",
    4: "no partition",
    5: "insufficient NVLinks",
    6: "incompatible GPU firmware",
    7: "invalid location",
    8: "GPU state invalid",
}

# nvmlFieldValue_t: device fields
LINK_COUNT, MEMORY_TEMP, REPLAY_ROLLOVER, RECOVERY_ACTION, POWER_INSTANT = 91, 82, 95, 230, 186
SHUTDOWN, SLOWDOWN, MEMORY_MAX, GPU_MAX = 193, 194, 195, 196  # T.Limit
HELD_SW_POWER_CAP, HELD_SYNC_BOOST = 74, 76  # all of them in ns
# nvidia-ml-py 12.575 and 13.580 have 251 to 253 where 13.590 and later have 269 to 271: NVML renumbered them
RENUMBERED_IN = 590
HELD_BEFORE = {251: ClocksEvent.SW_THERMAL, 252: ClocksEvent.HW_THERMAL, 253: ClocksEvent.HW_POWER_BRAKE}
HELD_SINCE = {269: ClocksEvent.SW_THERMAL, 270: ClocksEvent.HW_THERMAL, 271: ClocksEvent.HW_POWER_BRAKE}
# fields of one link, which is their scope
LINK_FIELDS = {
    "replay": 161,
    "recovery": 162,
    "crc": 163,
    "speed_mb_per_s": 164,
    "recovery_failed": 214,
    "recovery_events": 215,
    "effective_errors": 219,
    "effective_ber": 220,
    "symbol_errors": 221,
    "symbol_ber": 222,
}
BERS = ("effective_ber", "symbol_ber")
LINKS_LIMIT = 36  # NVML_NVLINK_MAX_LINKS
MIB = 1 << 20


def _signed(value: float | None) -> float | None:
    # drivers before 550 give the T.Limits, which may be negative, the type "unsigned int"
    return value - (1 << 32) if value is not None and value >= 1 << 31 else value


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)


def bit_error_rate(raw: float) -> float:
    """Mantissa in bits 8 to 11, negative decimal exponent in bits 0 to 7 (NVML_NVLINK_ERROR_COUNTER_BER_GET)."""
    return (int(raw) >> 8 & 0xF) * 10.0 ** -(int(raw) & 0xFF)


def read_all(nvml: Any, devices: Path = Path("/dev")) -> NvmlReply:
    """Every GPU. ``nvml``: the module pynvml, or a stand-in; ``devices``: the folder of the device files."""
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        return NvmlReply(failed=error.value, text=str(error))
    try:
        driver = nvml.nvmlSystemGetDriverVersion()
    except nvml.NVMLError:
        driver = None
    try:
        count = nvml.nvmlDeviceGetCount()
    except nvml.NVMLError as error:
        return NvmlReply(failed=error.value, text=str(error))
    held = _held_fields(driver)
    return NvmlReply(
        reading=GpuReading(
            source="nvml",
            driver_version=driver,
            gpus=tuple(_read_gpu(nvml, place, held) for place in range(count)),
            visible=_visible(devices),
        )
    )


def _held_fields(driver: str | None) -> dict[int, ClocksEvent]:
    release = (driver or "").partition(".")[0]
    renumbered = release.isdigit() and int(release) >= RENUMBERED_IN
    common = {HELD_SW_POWER_CAP: ClocksEvent.SW_POWER_CAP, HELD_SYNC_BOOST: ClocksEvent.SYNC_BOOST}
    return common | (HELD_SINCE if renumbered else HELD_BEFORE)


def _visible(devices: Path) -> tuple[int, ...]:
    # access(2) also fails where a container's device rules forbid the device
    found = [path for path in devices.glob("nvidia*") if path.name[6:].isdecimal() and os.access(path, os.R_OK)]
    return tuple(sorted(int(path.name[6:]) for path in found))


def _read_gpu(nvml: Any, index: int, held: Mapping[int, ClocksEvent]) -> Gpu:
    try:
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
    except nvml.NVMLError as error:
        text = str(error)
        return Gpu(index=index, lost=text) if error.value in LOST else Gpu(index=index, errors={"handle": text})
    query = NvmlQuery(nvml, handle)
    parts: dict[str, Any] = {}
    lost = ""
    try:
        for name, value in _parts(query, held):
            parts[name] = value
    except GpuLost as error:
        lost = str(error)
    return Gpu(index=index, lost=lost, errors=query.errors, **parts)


def _parts(query: NvmlQuery, held: Mapping[int, ClocksEvent]) -> Iterable[tuple[str, Any]]:
    """The fields of a Gpu one by one, so that those read before the GPU was lost are kept."""
    pci = query.get("address", "PciInfo")
    if pci is not None:
        yield "address", f"{pci.domain:04x}:{pci.bus:02x}:{pci.device:02x}.0"
    for field, function in (("uuid", "UUID"), ("name", "Name"), ("serial", "Serial"), ("vbios", "VbiosVersion")):
        yield field, query.get(field, function)
    yield "minor", query.get("minor", "MinorNumber")
    yield "persistence", query.flag("persistence", "PersistenceMode")
    mig = query.get("mig", "MigMode")
    yield "mig", None if mig is None else bool(mig[0])
    memory = query.get("memory", "MemoryInfo")
    if memory is not None:
        yield "memory_total_mib", memory.total / MIB
        yield "memory_used_mib", memory.used / MIB
    wanted = (MEMORY_TEMP, LINK_COUNT, REPLAY_ROLLOVER, RECOVERY_ACTION, POWER_INSTANT, SHUTDOWN, SLOWDOWN)
    found = query.fields("fields", (*wanted, MEMORY_MAX, GPU_MAX, *held))
    yield "recovery", _recovery(query, found.get(RECOVERY_ACTION))
    yield "pcie", _pcie(query, found)
    yield "ecc", _ecc(query)
    yield "remapped", _remapped(query)
    yield "retired", _retired(query)
    yield "temperature", _temperature(query, found)
    yield "power", _power(query, found)
    yield "clocks", _clocks(query, found, held)
    yield "fabric", _fabric(query)
    yield "config", read_config(query, mig)
    yield "nvlinks", _nvlinks(query, found.get(LINK_COUNT))


def _recovery(query: NvmlQuery, action: float | None) -> RecoveryAction | None:
    if action is None:
        return None
    if action < len(RECOVERY):
        return RECOVERY[int(action)]
    query.errors["recovery"] = f"unknown recovery action {action:g}"
    return None


def _pcie(query: NvmlQuery, found: Mapping[int, float]) -> Pcie:
    return Pcie(
        generation=query.get("pcie.generation", "CurrPcieLinkGeneration"),
        generation_max=query.get("pcie.generation_max", "MaxPcieLinkGeneration"),
        device_generation_max=query.get("pcie.device_generation_max", "GpuMaxPcieLinkGeneration"),
        width=query.get("pcie.width", "CurrPcieLinkWidth"),
        width_max=query.get("pcie.width_max", "MaxPcieLinkWidth"),
        replays=query.get("pcie.replays", "PcieReplayCounter"),
        replay_rollovers=_whole(found.get(REPLAY_ROLLOVER)),
    )


def _ecc(query: NvmlQuery) -> Ecc:
    mode = query.get("ecc.enabled", "EccMode")
    if mode is None or not mode[0]:
        return Ecc(enabled=None if mode is None else False, pending_enabled=None if mode is None else bool(mode[1]))
    sram = query.struct("ecc.sram", "SramEccErrorStatus", "c_nvmlEccSramErrorStatus_v1_t")
    repair: Sequence[int] | None = query.get("ecc.repair", "RepairStatus")
    return Ecc(
        enabled=True,
        pending_enabled=bool(mode[1]),
        volatile=_counts(query, "volatile", 0, sram),
        aggregate=_counts(query, "aggregate", 1, sram),
        sram_threshold_exceeded=None if sram is None else bool(sram.bThresholdExceeded),
        channel_repair_pending=None if repair is None else bool(repair[0]),
        tpc_repair_pending=None if repair is None else bool(repair[1]),
        unrepairable_memory=query.flag("ecc.unrepairable_memory", "UnrepairableMemoryFlag_v1"),
    )


def _counts(query: NvmlQuery, span: str, counter: int, sram: Any) -> EccCounts:
    corrected, uncorrected, dram, on_chip = 0, 1, 2, 7
    read: dict[str, int | None] = {}
    for name, kind in (("corrected", corrected), ("uncorrected", uncorrected)):
        read[name] = query.get(f"ecc.{span}.{name}", "TotalEccErrors", kind, counter)
        read[f"dram_{name}"] = query.get(f"ecc.{span}.dram_{name}", "MemoryErrorCounter", kind, counter, dram)
        if sram is None:
            read[f"sram_{name}"] = query.get(f"ecc.{span}.sram_{name}", "MemoryErrorCounter", kind, counter, on_chip)
    if sram is not None:
        parity = getattr(sram, f"{span}UncParity")
        read["sram_corrected"] = getattr(sram, f"{span}Cor")
        read["sram_uncorrected"] = parity + getattr(sram, f"{span}UncSecDed")
        read["sram_uncorrected_parity"] = parity
    return EccCounts(**read)


def _remapped(query: NvmlQuery) -> RemappedRows:
    rows = query.get("remapped", "RemappedRows")
    if rows is None:
        return RemappedRows()
    banks = query.get("remapped.histogram", "RowRemapperHistogram")
    return RemappedRows(
        corrected=rows[0],
        uncorrected=rows[1],
        pending=bool(rows[2]),
        failure=bool(rows[3]),
        histogram=None
        if banks is None
        else BankHistogram(maximum=banks.max, high=banks.high, partial=banks.partial, low=banks.low, none=banks.none),
    )


def _retired(query: NvmlQuery) -> RetiredPages:
    single, double = (query.get(f"retired.{name}", "RetiredPages", cause) for cause, name in enumerate(("sbe", "dbe")))
    return RetiredPages(
        single_bit=None if single is None else len(single),
        double_bit=None if double is None else len(double),
        pending=query.flag("retired.pending", "RetiredPagesPendingStatus"),
    )


def _temperature(query: NvmlQuery, found: Mapping[int, float]) -> Temperature:
    now = query.get("temperature.gpu_c", "TemperatureV", 0)
    if now is None:
        now = query.get("temperature.gpu_c", "Temperature", 0)
    if now is not None:
        query.errors.pop("temperature.gpu_c", None)  # the older function answered
    shutdown, slowdown, memory_max, operating_max = (
        query.get(f"temperature.{name}", "TemperatureThreshold", which)
        for which, name in enumerate(("shutdown_c", "slowdown_c", "memory_max_c", "operating_max_c"))
    )
    return Temperature(
        gpu_c=now,
        memory_c=found.get(MEMORY_TEMP),
        operating_max_c=operating_max,
        slowdown_c=slowdown,
        shutdown_c=shutdown,
        memory_max_c=memory_max,
        t_limit_c=query.get("temperature.t_limit_c", "MarginTemperature"),
        operating_t_limit_c=_signed(found.get(GPU_MAX)),
        slowdown_t_limit_c=_signed(found.get(SLOWDOWN)),
        shutdown_t_limit_c=_signed(found.get(SHUTDOWN)),
        memory_t_limit_c=_signed(found.get(MEMORY_MAX)),
    )


def _power(query: NvmlQuery, found: Mapping[int, float]) -> Power:
    instant = found.get(POWER_INSTANT)
    limits = query.get("power.max_limit_w", "PowerManagementLimitConstraints")
    return Power(
        draw_w=query.scaled("power.draw_w", "PowerUsage", by=1000) if instant is None else instant / 1000,
        limit_w=query.scaled("power.limit_w", "EnforcedPowerLimit", by=1000),
        requested_limit_w=query.scaled("power.requested_limit_w", "PowerManagementLimit", by=1000),
        default_limit_w=query.scaled("power.default_limit_w", "PowerManagementDefaultLimit", by=1000),
        max_limit_w=None if limits is None else limits[1] / 1000,
    )


def _clocks(query: NvmlQuery, found: Mapping[int, float], held: Mapping[int, ClocksEvent]) -> GpuClocks:
    graphics, memory = 0, 2
    bits = query.first("clocks.events", "CurrentClocksEventReasons", "CurrentClocksThrottleReasons")
    return GpuClocks(
        graphics_mhz=query.get("clocks.graphics_mhz", "ClockInfo", graphics),
        graphics_max_mhz=query.get("clocks.graphics_max_mhz", "MaxClockInfo", graphics),
        memory_mhz=query.get("clocks.memory_mhz", "ClockInfo", memory),
        memory_max_mhz=query.get("clocks.memory_max_mhz", "MaxClockInfo", memory),
        events=None if bits is None else tuple(event for bit, event in EVENTS.items() if bits & bit),
        held_s={event: found[number] / 1e9 for number, event in held.items() if number in found},
    )


def _fabric(query: NvmlQuery) -> GpuFabric:
    info = query.struct("fabric", "GpuFabricInfoV", "c_nvmlGpuFabricInfo_v3_t", "c_nvmlGpuFabricInfo_v2_t")
    if info is None:
        return GpuFabric()
    mask = info.healthMask

    def answer(shift: int) -> bool | None:  # 0 not supported, 1 true, 2 false
        return {1: True, 2: False}.get(mask >> shift & 3)

    return GpuFabric(
        state=FABRIC_STATES.get(info.state, str(info.state)),
        status="" if info.status == 0 else str(query.nvml.NVMLError(info.status)),
        clique=info.cliqueId,
        cluster_uuid=bytes(info.clusterUuid).hex(),
        summary=SUMMARIES.get(getattr(info, "healthSummary", 0)),
        bandwidth_degraded=answer(0),
        route_recovery=answer(2),
        route_unhealthy=answer(4),
        access_timeout_recovery=answer(6),
        misconfigured=MISCONFIGURED.get(mask >> 8 & 0xF),
    )


def _nvlinks(query: NvmlQuery, count: float | None) -> tuple[NvLink, ...]:
    """``count``: as the driver reports it; if None, links are queried until one does not exist."""
    links: list[NvLink] = []
    for link in range(LINKS_LIMIT if count is None else min(int(count), LINKS_LIMIT)):
        active = query.flag(f"nvlink.{link}", "NvLinkState", link)
        if active is None and count is None and f"nvlink.{link}" not in query.errors:
            break
        links.append(_nvlink(query, link, active))
    return tuple(links)


def _nvlink(query: NvmlQuery, link: int, active: bool | None) -> NvLink:
    if not active:  # a link that is down has no counters
        return NvLink(link=link, active=active)
    found = query.fields(f"nvlink.{link}", LINK_FIELDS.values(), link)
    values = {name: found[number] for name, number in LINK_FIELDS.items() if number in found}
    events = values.pop("recovery_events", None)
    if events is not None:  # NVLink 5 counts them under another name
        values.setdefault("recovery", events)
    elif "replay" not in values:  # before Hopper there is a function for it
        values |= _older_counters(query, link)
    numbers = {
        name: bit_error_rate(value) if name in BERS else float(value) if name == "speed_mb_per_s" else int(value)
        for name, value in values.items()
    }
    version = query.get(f"nvlink.{link}", "NvLinkVersion", link)
    remote = query.get(f"nvlink.{link}", "NvLinkRemoteDeviceType", link)
    return NvLink(link=link, active=True, version=VERSIONS.get(version), remote=REMOTES.get(remote), **numbers)  # type: ignore[arg-type] # by name, as above


def _older_counters(query: NvmlQuery, link: int) -> dict[str, float]:
    replay, recovery, flits, data = (
        query.get(f"nvlink.{link}", "NvLinkErrorCounter", link, counter) for counter in range(4)
    )
    counters = {"replay": replay, "recovery": recovery, "crc": None if flits is None or data is None else flits + data}
    return {name: count for name, count in counters.items() if count is not None}


def main() -> int:
    try:
        import pynvml
    except ImportError as error:
        answer = NvmlReply(failed=-1, text=str(error))
    else:
        answer = read_all(pynvml)
    sys.stdout.buffer.write(msgspec.json.encode(answer))
    return 0


if __name__ == "__main__":
    sys.exit(main())
