"""Documents as `nvidia-smi -q -x` prints them, with values of our own.

Written for these tests after nvsmi_device_v13.dtd, whose order they keep; of its elements they have those that tell
one GPU or state from another. ``N/A`` stands where nvidia-smi prints it for such a GPU.
"""

from collections.abc import Collection, Mapping, Sequence
from xml.etree import ElementTree

Values = Mapping[str, "str | Values"]
NOT_THERE = "N/A"
LOST_TEXT = "GPU is lost"
EVENTS = (
    "gpu_idle",
    "applications_clocks_setting",
    "sw_power_cap",
    "hw_slowdown",
    "hw_thermal_slowdown",
    "hw_power_brake_slowdown",
    "sync_boost",
    "sw_thermal_slowdown",
    "display_clocks_setting",
)
HELD = ("sw_power_cap", "sync_boost", "sw_therm_slowdown", "hw_therm_slowdown", "hw_power_brake")
COUNTS = (
    "sram_correctable",
    "sram_uncorrectable_parity",
    "sram_uncorrectable_secded",
    "dram_correctable",
    "dram_uncorrectable",
)
ADDRESSES = tuple(f"00000000:{bus}:00.0" for bus in ("18", "2A", "3A", "5D", "9A", "AB", "BA", "DB"))


def document(driver: str, gpus: Sequence[Values]) -> bytes:
    root = ElementTree.Element("nvidia_smi_log")
    _fill(root, {"timestamp": "Mon Mar  2 09:15:30 2026", "driver_version": driver, "attached_gpus": str(len(gpus))})
    for values in gpus:
        pci = values["pci"]
        assert isinstance(pci, Mapping)
        _fill(ElementTree.SubElement(root, "gpu", id=str(pci["pci_bus_id"])), values)
    ElementTree.indent(root, "\t")
    head = '<?xml version="1.0" ?>\n<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v13.dtd">\n'
    return f"{head}{ElementTree.tostring(root, encoding='unicode')}\n".encode()


def _fill(element: ElementTree.Element, values: Values) -> None:
    for name, value in values.items():
        child = ElementTree.SubElement(element, name)
        if isinstance(value, str):
            child.text = value
        else:
            _fill(child, value)


def _pci(address: str, generation: int, width: int, replays: int) -> Values:
    return {
        "pci_bus": address[9:11],
        "pci_device": address[12:14],
        "pci_domain": address[4:8],
        "pci_bus_id": address,
        "pci_gpu_link_info": {
            "pcie_gen": {
                "max_link_gen": str(generation),
                "current_link_gen": str(generation),
                "max_device_link_gen": str(generation),
                "max_host_link_gen": NOT_THERE,
            },
            "link_widths": {"max_link_width": "16x", "current_link_width": f"{width}x"},
        },
        "replay_counter": str(replays),
        "replay_rollover_counter": "0",
    }


def _identity(name: str, place: int, address: str) -> dict[str, "str | Values"]:
    return {
        "product_name": name,
        "product_brand": "NVIDIA",
        "display_mode": "Requested functionality has been deprecated",
        "persistence_mode": "Enabled",
        "addressing_mode": "HMM",
        "serial": f"17520250310{place:02}",
        "uuid": f"GPU-7c0ffee{place}-5a1e-4b2d-9c3f-0123456789ab",
        "minor_number": str(place),
    }


def _events(**held_us: str) -> dict[str, "str | Values"]:
    """Idle, and nothing else."""
    return {
        "clocks_event_reasons": {
            f"clocks_event_reason_{name}": "Active" if name == "gpu_idle" else "Not Active" for name in EVENTS
        },
        "clocks_event_reasons_counters": {
            f"clocks_event_reasons_counters_{name}": held_us.get(name, "0 us") for name in HELD
        },
    }


def _memory(total: int, reserved: int) -> Values:
    return {
        "total": f"{total} MiB",
        "reserved": f"{reserved} MiB",
        "used": "0 MiB",
        "free": f"{total - reserved} MiB",
    }


def _clocks(now: int, most: int, memory: int) -> dict[str, "str | Values"]:
    return {
        "clocks": {"graphics_clock": f"{now} MHz", "sm_clock": f"{now} MHz", "mem_clock": f"{memory} MHz"},
        "max_clocks": {"graphics_clock": f"{most} MHz", "sm_clock": f"{most} MHz", "mem_clock": f"{memory} MHz"},
    }


def _application_clocks(graphics: int, memory: int) -> dict[str, "str | Values"]:
    values = {"graphics_clock": f"{graphics} MHz", "mem_clock": f"{memory} MHz"}
    return {"applications_clocks": values, "default_applications_clocks": values}


NO_PAGES: Values = {
    "multiple_single_bit_retirement": {"retired_count": NOT_THERE},
    "double_bit_retirement": {"retired_count": NOT_THERE},
    "pending_retirement": NOT_THERE,
}
NO_HEALTH = dict.fromkeys(
    (
        "summary",
        "bandwidth",
        "route_recovery_in_progress",
        "route_unhealthy",
        "access_timeout_recovery",
        "incorrect_configuration",
    ),
    NOT_THERE,
)


def _fabric(cluster: str) -> Values:
    return {
        "state": "Completed",
        "status": "Success",
        "cliqueId": "4",
        "clusterUuid": cluster,
        "health": NO_HEALTH,
    }


def _power(draw: float, limit: float, most: float) -> Values:
    return {
        "power_state": "P0",
        "average_power_draw": f"{draw - 0.4:.2f} W",
        "instant_power_draw": f"{draw:.2f} W",
        "current_power_limit": f"{limit:.2f} W",
        "requested_power_limit": f"{limit:.2f} W",
        "default_power_limit": f"{limit:.2f} W",
        "max_power_limit": f"{most:.2f} W",
    }


def h100(place: int) -> Values:
    """Sound and idle, on an NVSwitch board."""
    none = dict.fromkeys(COUNTS, "0")
    return {
        **_identity("NVIDIA H100 80GB HBM3", place, ADDRESSES[place]),
        "mig_mode": {"current_mig": "Disabled", "pending_mig": "Disabled"},
        "vbios_version": "96.00.74.00.01",
        "gpu_recovery_action": "None",
        "pci": _pci(ADDRESSES[place], 5, 16, 7 + place),
        **_events(sw_power_cap=f"{412_000_250 + place} us"),
        "fb_memory_usage": _memory(81_559, 551),
        "compute_mode": "Default",
        "ecc_mode": {"current_ecc": "Enabled", "pending_ecc": "Enabled"},
        "ecc_errors": {
            "volatile": none,
            "aggregate": {**none, "sram_threshold_exceeded": "No"},
            "channel_repair_pending": "No",
            "tpc_repair_pending": "No",
        },
        "retired_pages": NO_PAGES,
        "remapped_rows": {
            "remapped_row_corr": "0",
            "remapped_row_unc": "0",
            "remapped_row_pending": "No",
            "remapped_row_failure": "No",
            "row_remapper_histogram": {
                "row_remapper_histogram_max": "2560 bank(s)",
                "row_remapper_histogram_high": "0 bank(s)",
                "row_remapper_histogram_partial": "0 bank(s)",
                "row_remapper_histogram_low": "0 bank(s)",
                "row_remapper_histogram_none": "0 bank(s)",
            },
        },
        "temperature": {
            "gpu_temp": f"{31 + place} C",
            "gpu_temp_tlimit": f"{56 - place} C",
            "gpu_temp_max_tlimit_threshold": "-8 C",
            "gpu_temp_slow_tlimit_threshold": "-2 C",
            "gpu_temp_max_gpu_tlimit_threshold": "0 C",
            "memory_temp": f"{40 + place} C",
            "gpu_temp_max_mem_tlimit_threshold": "0 C",
        },
        "gpu_power_readings": _power(71.25 + place, 700, 700),
        **_clocks(345, 1980, 2619),
        **_application_clocks(1980, 2619),
        "fabric": _fabric("5d0c4c1e-8a11-4f6e-b6d4-2f1e7a90c3d5"),
        "processes": {},
    }


def t4() -> Values:
    """Of before row remapping, at half its lanes, by a driver that has no application clocks any more."""
    none = dict.fromkeys(("sram_correctable", "sram_uncorrectable", "dram_correctable", "dram_uncorrectable"), "0")
    deprecated = {
        "graphics_clock": "Requested functionality has been deprecated",
        "mem_clock": "Requested functionality has been deprecated",
    }
    return {
        **_identity("Tesla T4", 0, "00000000:00:06.0"),
        "mig_mode": {"current_mig": NOT_THERE, "pending_mig": NOT_THERE},
        "vbios_version": "90.04.38.00.03",
        "gpu_recovery_action": "None",
        "pci": _pci("00000000:00:06.0", 3, 8, 0),
        **_events(),
        "fb_memory_usage": _memory(15_360, 431),
        "compute_mode": "Default",
        "ecc_mode": {"current_ecc": "Enabled", "pending_ecc": "Enabled"},
        "ecc_errors": {"volatile": none, "aggregate": {**none, "dram_correctable": "2"}},
        "retired_pages": {
            "multiple_single_bit_retirement": {"retired_count": "0"},
            "double_bit_retirement": {"retired_count": "0"},
            "pending_retirement": "No",
        },
        "remapped_rows": NOT_THERE,
        "temperature": {
            "gpu_temp": "38 C",
            "gpu_temp_tlimit": NOT_THERE,
            "gpu_temp_max_threshold": "96 C",
            "gpu_temp_slow_threshold": "93 C",
            "gpu_temp_max_gpu_threshold": "85 C",
            "memory_temp": NOT_THERE,
            "gpu_temp_max_mem_threshold": NOT_THERE,
        },
        "gpu_power_readings": _power(14.8, 70, 70),
        **_clocks(300, 1590, 5000),
        "applications_clocks": deprecated,
        "default_applications_clocks": deprecated,
        "fabric": {
            "state": NOT_THERE,
            "status": NOT_THERE,
            "cliqueId": NOT_THERE,
            "clusterUuid": NOT_THERE,
            "health": NO_HEALTH,
        },
        "processes": {},
    }


def gb200(place: int, address: str) -> Values:
    """Of whose rows one could not be remapped."""
    return {
        **_identity("NVIDIA GB200", place, address),
        "mig_mode": {"current_mig": "Disabled", "pending_mig": "Disabled"},
        "vbios_version": "97.00.B9.00.51",
        "gpu_recovery_action": NOT_THERE,
        "pci": _pci(address, 6, 16, 0),
        **_events(**dict.fromkeys(HELD, NOT_THERE)),
        "fb_memory_usage": _memory(189_471, 1_120),
        "compute_mode": "Default",
        "ecc_mode": {"current_ecc": "Enabled", "pending_ecc": "Enabled"},
        "ecc_errors": {
            "volatile": {**dict.fromkeys(COUNTS, NOT_THERE), "dram_correctable": "1", "dram_uncorrectable": "3"},
            "aggregate": {**dict.fromkeys(COUNTS, NOT_THERE), "dram_correctable": "1", "dram_uncorrectable": "6"},
            "channel_repair_pending": NOT_THERE,
            "tpc_repair_pending": NOT_THERE,
        },
        "retired_pages": NO_PAGES,
        "remapped_rows": {
            "remapped_row_corr": "0",
            "remapped_row_unc": "2",
            "remapped_row_pending": "No",
            "remapped_row_failure": "Yes",
            "row_remapper_histogram": NOT_THERE,
        },
        "temperature": {
            "gpu_temp": "44 C",
            "gpu_temp_tlimit": "41 C",
            "gpu_temp_max_tlimit_threshold": "-5 C",
            "gpu_temp_slow_tlimit_threshold": "0 C",
            "gpu_temp_max_gpu_tlimit_threshold": "5 C",
            "memory_temp": "36 C",
            "gpu_temp_max_mem_tlimit_threshold": NOT_THERE,
        },
        "gpu_power_readings": _power(190.5, 1000, 1200),
        **_clocks(345, 2100, 2500),
        **_application_clocks(2100, 2500),
        "fabric": _fabric("9b3f6d20-1c77-4e0a-8d52-64d8c2f0a911"),
        "processes": {},
    }


def lost(gpu: Values) -> Values:
    """``gpu`` once the driver cannot reach it: what it is stays known, what would be read of it is lost."""
    everything = {name: _say_lost(gpu[name]) for name in ("fb_memory_usage", "clocks", "fabric")}
    some = {
        "ecc_errors": ("dram_correctable", "dram_uncorrectable"),
        "temperature": ("gpu_temp", "gpu_temp_tlimit"),
        "gpu_power_readings": ("average_power_draw", "instant_power_draw"),
    }
    parts = {name: _say_lost(gpu[name], only) for name, only in some.items()}
    return {**gpu, **everything, **parts, "remapped_rows": LOST_TEXT}


def _say_lost(value: "str | Values", only: Collection[str] = ()) -> "str | Values":
    if isinstance(value, str):
        return LOST_TEXT
    return {
        name: _say_lost(part, only) if not isinstance(part, str) or not only or name in only else part
        for name, part in value.items()
    }
