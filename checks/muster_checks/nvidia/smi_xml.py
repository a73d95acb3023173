"""Reads `nvidia-smi -q -x`, the fallback when the NVML library cannot be used, and a format of `muster check --sample`.

Element names: nvsmi_device_v12.dtd and v13.dtd, as in recorded output of drivers 580 and 595; those of older drivers
(power_readings, clocks_throttle_reasons, single_bit and double_bit) from NVIDIA's nvidia-smi manual page.
The document does not contain NVLinks.
"""

import re
from collections.abc import Iterable
from xml.etree import ElementTree

from muster_checks.base.bounded_read import DOCUMENT_LIMIT_BYTES, Unreadable, integer, number
from muster_checks.hardware.pci import normal_address
from muster_checks.nvidia.gpu import (
    BankHistogram,
    ClocksEvent,
    ComputeMode,
    Ecc,
    EccCounts,
    Gpu,
    GpuClocks,
    GpuConfig,
    GpuFabric,
    GpuReading,
    Pcie,
    Power,
    RecoveryAction,
    RemappedRows,
    RetiredPages,
    Temperature,
)

ROOT = "nvidia_smi_log"
LOST = ("gpu is lost", "gpu is inaccessible", "gpu requires reset", "gpu requires restart")
ERRORS = ("unknown error", "insufficient permissions", "timeout", "err!")
TEXT_LIMIT = 120  # longer than any name or number
TRUE, FALSE = ("yes", "enabled", "active", "true"), ("no", "disabled", "not active", "false")

EVENTS = {
    "gpu_idle": ClocksEvent.IDLE,
    "applications_clocks_setting": ClocksEvent.APPLICATION_CLOCKS,
    "sw_power_cap": ClocksEvent.SW_POWER_CAP,
    "hw_slowdown": ClocksEvent.HW_SLOWDOWN,
    "hw_thermal_slowdown": ClocksEvent.HW_THERMAL,
    "hw_power_brake_slowdown": ClocksEvent.HW_POWER_BRAKE,
    "sync_boost": ClocksEvent.SYNC_BOOST,
    "sw_thermal_slowdown": ClocksEvent.SW_THERMAL,
    "display_clocks_setting": ClocksEvent.DISPLAY_CLOCKS,
}
HELD = {
    "sw_power_cap": ClocksEvent.SW_POWER_CAP,
    "sync_boost": ClocksEvent.SYNC_BOOST,
    "sw_therm_slowdown": ClocksEvent.SW_THERMAL,
    "hw_therm_slowdown": ClocksEvent.HW_THERMAL,
    "hw_power_brake": ClocksEvent.HW_POWER_BRAKE,
}
# nvidia-smi prints these lines to stdout, before or after its document (gpu-operator's page on return code 14)
_CORRUPT_INFOROM = re.compile(rb"^WARNING: infoROM is corrupted at gpu ([0-9A-Fa-f:.]{1,20})[ \t\r]*$", re.M)


def is_smi_xml(text: bytes) -> bool:
    """Whether ``text`` is such a document, complete or not."""
    return f"<{ROOT}".encode() in text[:4096]


def parse_if_smi_xml(text: bytes) -> GpuReading | None:
    """For `muster check --sample`: None if ``text`` has another format. Raises as :func:`parse`."""
    return parse(text) if is_smi_xml(text) else None


def parse(text: bytes) -> GpuReading:
    """The GPUs of one document. Raises Unreadable if it is another document, is cut short or is larger than 16 MiB."""
    if len(text) > DOCUMENT_LIMIT_BYTES:
        raise Unreadable(f"{len(text) >> 20} MiB of text: expected nvidia-smi -q -x of at most 16 MiB")
    # nvidia-smi defines no entities: a document that does is an attack by entity expansion, also in UTF-16
    if b"<!ENTITY" in text or b"\0" in text:
        raise Unreadable("defines entities or is not UTF-8: expected the output of nvidia-smi -q -x")
    corrupt = {normal_address(address.decode()) for address in _CORRUPT_INFOROM.findall(text)}
    if corrupt:
        text = _CORRUPT_INFOROM.sub(b"", text).lstrip()
    try:
        root = ElementTree.fromstring(text, ElementTree.XMLParser(encoding="utf-8"))  # noqa: S314 - guarded above
    except (ElementTree.ParseError, ValueError) as error:
        raise Unreadable(f"not a complete nvidia-smi -q -x document: {error}") from None
    if root.tag != ROOT:
        raise Unreadable(f"<{root.tag[:40]}>: expected <{ROOT}>, the output of nvidia-smi -q -x")
    gpus = tuple(_gpu(place, element, corrupt) for place, element in enumerate(root.findall("gpu")))
    attached = integer(root.findtext("attached_gpus"))
    if attached is not None and attached != len(gpus):
        raise Unreadable(f"{len(gpus)} <gpu> elements, but attached_gpus is {attached}: the document was cut short")
    return GpuReading(source="nvidia-smi", driver_version=root.findtext("driver_version"), gpus=gpus)


class _Element:
    """One <gpu>: values by path. ``errors``: by field, the text that nvidia-smi printed instead of a value."""

    def __init__(self, element: ElementTree.Element) -> None:
        self._element = element
        self.errors: dict[str, str] = {}

    def text(self, field: str, *paths: str) -> str | None:
        """The value of the first of ``paths`` that has one."""
        for path in paths:
            found = (self._element.findtext(path) or "").strip()[:TEXT_LIMIT]
            plain = found.strip("[]").casefold()
            if plain.startswith(ERRORS) or plain in LOST:
                self.errors[field] = found
            elif plain and plain not in ("n/a", "not supported") and not plain.startswith("requested functionality"):
                return found
        return None

    def real(self, field: str, *paths: str) -> float | None:
        return number(self.text(field, *paths))

    def whole(self, field: str, *paths: str) -> int | None:
        return integer(self._amount(self.text(field, *paths)))

    def flag(self, field: str, *paths: str) -> bool | None:
        found = (self.text(field, *paths) or "").casefold()
        return True if found in TRUE else False if found in FALSE else None

    @staticmethod
    def _amount(text: str | None) -> float | None:
        # a width such as "16x", which number() would take for a hexadecimal number
        return number(text.removesuffix("x") if text else None)

    def processes(self) -> int | None:
        listed = self._element.find("processes")
        if listed is None or (listed.text or "").strip():  # "N/A" where the driver does not list them
            return None
        return len({process.findtext("pid") for process in listed.findall("process_info")})

    @property
    def lost(self) -> str:
        for element in self._element.iter():
            found = (element.text or "").strip()
            if found.casefold() in LOST:  # nvidia-smi prints this text instead of any value
                return found
        return ""


def _gpu(index: int, element: ElementTree.Element, corrupt: set[str]) -> Gpu:
    fields = _Element(element)
    address = normal_address(fields.text("address", "pci/pci_bus_id") or element.get("id", "")[:TEXT_LIMIT])
    return Gpu(
        index=index,
        address=address,
        lost=fields.lost,
        uuid=fields.text("uuid", "uuid"),
        name=fields.text("name", "product_name"),
        serial=fields.text("serial", "serial"),
        minor=fields.whole("minor", "minor_number"),
        vbios=fields.text("vbios", "vbios_version"),
        memory_total_mib=fields.real("memory", "fb_memory_usage/total"),
        memory_used_mib=fields.real("memory", "fb_memory_usage/used"),
        mig=fields.flag("mig", "mig_mode/current_mig"),
        persistence=fields.flag("persistence", "persistence_mode"),
        recovery=_recovery(fields),
        pcie=_pcie(fields),
        ecc=_ecc(fields),
        remapped=_remapped(fields),
        retired=RetiredPages(
            single_bit=fields.whole("retired.sbe", "retired_pages/multiple_single_bit_retirement/retired_count"),
            double_bit=fields.whole("retired.dbe", "retired_pages/double_bit_retirement/retired_count"),
            pending=fields.flag("retired.pending", "retired_pages/pending_retirement"),
        ),
        temperature=_temperature(fields),
        power=_power(fields),
        clocks=_clocks(fields),
        fabric=_fabric(fields),
        config=_config(fields, False if address in corrupt else None),
        errors=fields.errors,
    )


def _recovery(fields: _Element) -> RecoveryAction | None:
    action = fields.text("recovery", "gpu_recovery_action")
    if action is None:
        return None
    try:
        return RecoveryAction(action.casefold().replace(" ", "-"))
    except ValueError:
        fields.errors["recovery"] = f"unknown recovery action {action!r}"
        return None


def _pcie(fields: _Element) -> Pcie:
    generation, width = "pci/pci_gpu_link_info/pcie_gen", "pci/pci_gpu_link_info/link_widths"
    return Pcie(
        generation=fields.whole("pcie.generation", f"{generation}/current_link_gen"),
        generation_max=fields.whole("pcie.generation_max", f"{generation}/max_link_gen"),
        device_generation_max=fields.whole("pcie.device_generation_max", f"{generation}/max_device_link_gen"),
        width=fields.whole("pcie.width", f"{width}/current_link_width"),
        width_max=fields.whole("pcie.width_max", f"{width}/max_link_width"),
        replays=fields.whole("pcie.replays", "pci/replay_counter"),
        replay_rollovers=fields.whole("pcie.replays", "pci/replay_rollover_counter"),
    )


def _ecc(fields: _Element) -> Ecc:
    return Ecc(
        enabled=fields.flag("ecc.enabled", "ecc_mode/current_ecc"),
        pending_enabled=fields.flag("ecc.enabled", "ecc_mode/pending_ecc"),
        volatile=_counts(fields, "volatile"),
        aggregate=_counts(fields, "aggregate"),
        sram_threshold_exceeded=fields.flag("ecc.sram", "ecc_errors/aggregate/sram_threshold_exceeded"),
        channel_repair_pending=fields.flag("ecc.repair", "ecc_errors/channel_repair_pending"),
        tpc_repair_pending=fields.flag("ecc.repair", "ecc_errors/tpc_repair_pending"),
    )


def _counts(fields: _Element, span: str) -> EccCounts:
    def count(name: str, *paths: str) -> int | None:
        return fields.whole(f"ecc.{span}.{name}", *(f"ecc_errors/{span}/{path}" for path in paths))

    parity = count("sram_uncorrected", "sram_uncorrectable_parity")
    protected = count("sram_uncorrected", "sram_uncorrectable_secded", "sram_uncorrectable")
    sram = _sum((parity, protected))
    sram_corrected = count("sram_corrected", "sram_correctable")
    dram_corrected = count("dram_corrected", "dram_correctable", "single_bit/device_memory")
    dram_uncorrected = count("dram_uncorrected", "dram_uncorrectable", "double_bit/device_memory")
    corrected = count("corrected", "single_bit/total")
    uncorrected = count("uncorrected", "double_bit/total")
    return EccCounts(
        corrected=_sum((sram_corrected, dram_corrected)) if corrected is None else corrected,
        uncorrected=_sum((sram, dram_uncorrected)) if uncorrected is None else uncorrected,
        sram_corrected=sram_corrected,
        sram_uncorrected=sram,
        sram_uncorrected_parity=parity,
        dram_corrected=dram_corrected,
        dram_uncorrected=dram_uncorrected,
    )


def _sum(counts: Iterable[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if known else None


def _remapped(fields: _Element) -> RemappedRows:
    fields.text("remapped", "remapped_rows")  # may hold "Unknown Error" instead of the rows
    banks = {
        name: fields.whole("remapped.histogram", f"remapped_rows/row_remapper_histogram/row_remapper_histogram_{short}")
        for name, short in (
            ("maximum", "max"),
            ("high", "high"),
            ("partial", "partial"),
            ("low", "low"),
            ("none", "none"),
        )
    }
    return RemappedRows(
        corrected=fields.whole("remapped", "remapped_rows/remapped_row_corr"),
        uncorrected=fields.whole("remapped", "remapped_rows/remapped_row_unc"),
        pending=fields.flag("remapped", "remapped_rows/remapped_row_pending"),
        failure=fields.flag("remapped", "remapped_rows/remapped_row_failure"),
        histogram=BankHistogram(**banks) if any(count is not None for count in banks.values()) else None,
    )


def _temperature(fields: _Element) -> Temperature:
    def degrees(name: str, element: str) -> float | None:
        return fields.real(f"temperature.{name}", f"temperature/{element}")

    return Temperature(
        gpu_c=degrees("gpu_c", "gpu_temp"),
        memory_c=degrees("memory_c", "memory_temp"),
        operating_max_c=degrees("operating_max_c", "gpu_temp_max_gpu_threshold"),
        slowdown_c=degrees("slowdown_c", "gpu_temp_slow_threshold"),
        shutdown_c=degrees("shutdown_c", "gpu_temp_max_threshold"),
        memory_max_c=degrees("memory_max_c", "gpu_temp_max_mem_threshold"),
        t_limit_c=degrees("t_limit_c", "gpu_temp_tlimit"),
        operating_t_limit_c=degrees("operating_t_limit_c", "gpu_temp_max_gpu_tlimit_threshold"),
        slowdown_t_limit_c=degrees("slowdown_t_limit_c", "gpu_temp_slow_tlimit_threshold"),
        shutdown_t_limit_c=degrees("shutdown_t_limit_c", "gpu_temp_max_tlimit_threshold"),
        memory_t_limit_c=degrees("memory_t_limit_c", "gpu_temp_max_mem_tlimit_threshold"),
    )


def _power(fields: _Element) -> Power:
    new, old = "gpu_power_readings", "power_readings"
    return Power(
        draw_w=fields.real(
            "power.draw_w",
            f"{new}/instant_power_draw",
            f"{new}/average_power_draw",
            f"{new}/power_draw",
            f"{old}/power_draw",
        ),
        limit_w=fields.real("power.limit_w", f"{new}/current_power_limit", f"{old}/enforced_power_limit"),
        requested_limit_w=fields.real("power.requested_limit_w", f"{new}/requested_power_limit", f"{old}/power_limit"),
        default_limit_w=fields.real(
            "power.default_limit_w", f"{new}/default_power_limit", f"{old}/default_power_limit"
        ),
        max_limit_w=fields.real("power.max_limit_w", f"{new}/max_power_limit", f"{old}/max_power_limit"),
    )


def _clocks(fields: _Element) -> GpuClocks:
    flags = {
        event: fields.flag(
            "clocks.events",
            f"clocks_event_reasons/clocks_event_reason_{name}",
            f"clocks_throttle_reasons/clocks_throttle_reason_{name}",
        )
        for name, event in EVENTS.items()
    }
    counters = "clocks_event_reasons_counters"
    held = {event: fields.real("clocks.held", f"{counters}/{counters}_{name}") for name, event in HELD.items()}
    return GpuClocks(
        graphics_mhz=fields.real("clocks.graphics_mhz", "clocks/graphics_clock"),
        graphics_max_mhz=fields.real("clocks.graphics_max_mhz", "max_clocks/graphics_clock"),
        memory_mhz=fields.real("clocks.memory_mhz", "clocks/mem_clock"),
        memory_max_mhz=fields.real("clocks.memory_max_mhz", "max_clocks/mem_clock"),
        events=tuple(event for event, on in flags.items() if on)
        if any(on is not None for on in flags.values())
        else None,
        held_s={event: microseconds / 1e6 for event, microseconds in held.items() if microseconds is not None},
    )


def _config(fields: _Element, inforom_valid: bool | None) -> GpuConfig:
    def clock(element: str) -> float | None:
        return fields.real("config.application_clocks", element)

    # drivers before 510 have no <reserved> and count it as used
    reserved = fields.real("config.memory_allocated_mib", "fb_memory_usage/reserved")
    used = fields.real("config.memory_allocated_mib", "fb_memory_usage/used")
    mode = (fields.text("config.compute_mode", "compute_mode") or "").casefold().replace("_", "-")
    addressing = fields.text("config.numa_memory", "addressing_mode")
    mig = fields.flag("mig", "mig_mode/current_mig")
    return GpuConfig(
        inforom_valid=inforom_valid,
        mig_pending=fields.flag("mig", "mig_mode/pending_mig"),
        compute_mode=ComputeMode(mode) if mode in tuple(ComputeMode) else None,
        processes=None if mig else fields.processes(),
        memory_allocated_mib=None if reserved is None else used,
        numa_memory=None if addressing is None else addressing == "ATS",
        application_graphics_mhz=clock("applications_clocks/graphics_clock"),
        application_memory_mhz=clock("applications_clocks/mem_clock"),
        default_application_graphics_mhz=clock("default_applications_clocks/graphics_clock"),
        default_application_memory_mhz=clock("default_applications_clocks/mem_clock"),
    )


def _fabric(fields: _Element) -> GpuFabric:
    state = fields.text("fabric", "fabric/state")
    status = fields.text("fabric", "fabric/status")
    summary = fields.text("fabric", "fabric/health/summary")
    bandwidth = (fields.text("fabric", "fabric/health/bandwidth") or "").casefold()
    configuration = fields.text("fabric", "fabric/health/incorrect_configuration")
    return GpuFabric(
        state=_with_dashes(state),
        status=None if status is None else "" if status.casefold() == "success" else status,
        clique=fields.whole("fabric", "fabric/cliqueId"),
        cluster_uuid=fields.text("fabric", "fabric/clusterUuid"),
        summary=_with_dashes(summary),
        bandwidth_degraded={"full": False, "degraded": True}.get(bandwidth),
        route_recovery=fields.flag("fabric", "fabric/health/route_recovery_in_progress"),
        route_unhealthy=fields.flag("fabric", "fabric/health/route_unhealthy"),
        access_timeout_recovery=fields.flag("fabric", "fabric/health/access_timeout_recovery"),
        misconfigured=None if configuration is None else "" if configuration.casefold() == "none" else configuration,
    )


def _with_dashes(text: str | None) -> str | None:
    return None if text is None else text.casefold().replace(" ", "-")
