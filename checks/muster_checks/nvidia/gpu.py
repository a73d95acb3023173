"""One GPU as its driver reports it. Values only; the NVML child loads this file too, so it must not import pydantic.

A field is None if the driver reports "N/A" or "not supported". After a real error ("Unknown Error", "GPU is lost") the
field is None as well, and :attr:`Gpu.errors` names it.
"""

from enum import StrEnum

import msgspec


class ClocksEvent(StrEnum):
    """Why a GPU runs below its highest clocks (nvmlClocksEventReason…, one bit each)."""

    IDLE = "idle"
    APPLICATION_CLOCKS = "application-clocks"
    SW_POWER_CAP = "sw-power-cap"
    HW_SLOWDOWN = "hw-slowdown"
    SYNC_BOOST = "sync-boost"
    SW_THERMAL = "sw-thermal-slowdown"
    HW_THERMAL = "hw-thermal-slowdown"
    HW_POWER_BRAKE = "hw-power-brake"
    DISPLAY_CLOCKS = "display-clocks"


class RecoveryAction(StrEnum):
    """The action that the driver requests (nvmlDeviceGpuRecoveryAction_t)."""

    NONE = "none"
    RESET = "reset"
    REBOOT = "reboot"
    DRAIN_P2P = "drain-p2p"
    DRAIN_AND_RESET = "drain-and-reset"
    RECOVER_IMEX = "recover-imex-domain"
    BUS_RESET = "bus-reset"
    SYSTEM_REBOOT = "system-reboot"


class EccCounts(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """ECC errors since the driver was loaded (volatile) or since the GPU was made (aggregate)."""

    corrected: int | None = None
    uncorrected: int | None = None
    sram_corrected: int | None = None
    sram_uncorrected: int | None = None
    sram_uncorrected_parity: int | None = None
    dram_corrected: int | None = None
    dram_uncorrected: int | None = None


class Ecc(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """``sram_threshold_exceeded``: the driver reports that SRAM errors exceed NVIDIA's limit for a replacement."""

    enabled: bool | None = None
    pending_enabled: bool | None = None
    volatile: EccCounts = EccCounts()
    aggregate: EccCounts = EccCounts()
    sram_threshold_exceeded: bool | None = None
    channel_repair_pending: bool | None = None
    tpc_repair_pending: bool | None = None
    unrepairable_memory: bool | None = None


class BankHistogram(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Number of memory banks by remaining spare rows (Ampere and later)."""

    maximum: int | None = None
    high: int | None = None
    partial: int | None = None
    low: int | None = None
    none: int | None = None


class RemappedRows(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Memory rows that spare rows replace (Ampere and later)."""

    corrected: int | None = None
    uncorrected: int | None = None
    pending: bool | None = None
    failure: bool | None = None
    histogram: BankHistogram | None = None


class RetiredPages(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Memory pages taken out of use, by cause (before Ampere)."""

    single_bit: int | None = None
    double_bit: int | None = None
    pending: bool | None = None


class Pcie(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """``generation_max``: of GPU and slot together; ``device_generation_max``: of the GPU alone. Widths are in
    lanes."""

    generation: int | None = None
    generation_max: int | None = None
    device_generation_max: int | None = None
    width: int | None = None
    width_max: int | None = None
    replays: int | None = None
    replay_rollovers: int | None = None


class Temperature(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Degrees Celsius. Since Hopper, limits are margins ("T.Limit"): ``t_limit_c`` falls to 0 at the highest
    temperature of the specification, and each ``…_t_limit_c`` is the margin at which something happens (for example,
    shutdown at -8)."""

    gpu_c: float | None = None
    memory_c: float | None = None
    operating_max_c: float | None = None
    slowdown_c: float | None = None
    shutdown_c: float | None = None
    memory_max_c: float | None = None
    t_limit_c: float | None = None
    operating_t_limit_c: float | None = None
    slowdown_t_limit_c: float | None = None
    shutdown_t_limit_c: float | None = None
    memory_t_limit_c: float | None = None


class Power(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Watts. ``limit_w``: the limit in force; ``default_limit_w``: the manufacturer's default."""

    draw_w: float | None = None
    limit_w: float | None = None
    requested_limit_w: float | None = None
    default_limit_w: float | None = None
    max_limit_w: float | None = None


class GpuClocks(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """``events``: what limits the clocks now; ``held_s``: for how many seconds it did since the driver was loaded."""

    graphics_mhz: float | None = None
    graphics_max_mhz: float | None = None
    memory_mhz: float | None = None
    memory_max_mhz: float | None = None
    events: tuple[ClocksEvent, ...] | None = None
    held_s: dict[ClocksEvent, float] = {}


class NvLink(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One NVLink of a GPU. Counters start at 0 when the driver is loaded or the link is trained.

    version:         ``4.0``; None if the driver does not report it
    remote:          ``gpu``, ``switch``, ``npu``; the kind of device at the other end
    speed_mb_per_s:  of the link, one direction, as the driver reports it
    crc:             flits and data together
    effective_errors, symbol_errors, …_ber, recovery_failed:  NVLink 5 and later
    """

    link: int
    active: bool | None = None
    version: str | None = None
    remote: str | None = None
    speed_mb_per_s: float | None = None
    replay: int | None = None
    recovery: int | None = None
    crc: int | None = None
    ecc: int | None = None
    effective_errors: int | None = None
    effective_ber: float | None = None
    symbol_errors: int | None = None
    symbol_ber: float | None = None
    recovery_failed: int | None = None


class GpuFabric(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Registration of a GPU with its NVSwitch fabric (HGX H100 and later, NVL72).

    state:   ``not-supported``, ``not-started``, ``in-progress``, ``completed``
    status:  the error of a completed registration; empty on success
    summary: ``healthy``, ``unhealthy``, ``limited-capacity``
    misconfigured: the configuration error; empty if there is none
    """

    state: str | None = None
    status: str | None = None
    clique: int | None = None
    cluster_uuid: str | None = None
    summary: str | None = None
    bandwidth_degraded: bool | None = None
    route_recovery: bool | None = None
    route_unhealthy: bool | None = None
    access_timeout_recovery: bool | None = None
    misconfigured: str | None = None


class ComputeMode(StrEnum):
    """Who may use a GPU: any process, one thread, nobody, one process."""

    DEFAULT = "default"
    EXCLUSIVE_THREAD = "exclusive-thread"
    PROHIBITED = "prohibited"
    EXCLUSIVE_PROCESS = "exclusive-process"


class GpuConfig(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Configuration and use of a GPU.

    inforom_valid: False if the checksums of its InfoROM are wrong; nvidia-smi reports only wrong ones
    mig_pending:   the MIG mode after the next reset
    processes:     number that the driver lists, in the reader's PID namespace; None in MIG mode
    memory_allocated_mib:  without the driver's own share; None if the driver does not separate the two
    numa_memory:   the GPU's memory is a NUMA node of the host (Grace), so the kernel allocates from it too
    application_…: the clocks set with nvidia-smi -ac; None since driver 595, which no longer has them
    """

    inforom_valid: bool | None = None
    mig_pending: bool | None = None
    compute_mode: ComputeMode | None = None
    processes: int | None = None
    memory_allocated_mib: float | None = None
    numa_memory: bool | None = None
    application_graphics_mhz: float | None = None
    application_memory_mhz: float | None = None
    default_application_graphics_mhz: float | None = None
    default_application_memory_mhz: float | None = None


class Gpu(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One GPU.

    address: ``0000:3b:00.0``; empty if it could not be read
    lost:    the driver's error for a GPU that does not respond ("GPU is lost"); empty for one that responds
    errors:  the driver's error by field (``temperature.gpu_c``); "not supported" is not an error
    """

    index: int
    address: str = ""
    lost: str = ""
    errors: dict[str, str] = {}
    uuid: str | None = None
    name: str | None = None
    serial: str | None = None
    minor: int | None = None
    vbios: str | None = None
    memory_total_mib: float | None = None
    memory_used_mib: float | None = None
    mig: bool | None = None
    persistence: bool | None = None
    recovery: RecoveryAction | None = None
    pcie: Pcie = Pcie()
    ecc: Ecc = Ecc()
    remapped: RemappedRows = RemappedRows()
    retired: RetiredPages = RetiredPages()
    temperature: Temperature = Temperature()
    power: Power = Power()
    clocks: GpuClocks = GpuClocks()
    nvlinks: tuple[NvLink, ...] | None = None
    fabric: GpuFabric = GpuFabric()
    config: GpuConfig = GpuConfig()

    @property
    def component(self) -> str:
        """The component name in findings."""
        return f"gpu/{self.address or f'index-{self.index}'}"

    @property
    def label(self) -> str:
        """For messages: ``GPU 3 (0000:3b:00.0, NVIDIA H100 80GB HBM3)``."""
        return f"GPU {self.index} ({', '.join(part for part in (self.address, self.name) if part)})"


class GpuReading(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """All GPUs at one moment.

    source:   ``nvml`` or ``nvidia-smi``
    missing:  addresses of GPUs that earlier readings of this process had and this one does not have
    visible:  minor numbers of the /dev/nvidia* that NVML can open: it lists only those GPUs
    """

    source: str
    driver_version: str | None = None
    gpus: tuple[Gpu, ...] = ()
    missing: tuple[str, ...] = ()
    visible: tuple[int, ...] | None = None


class NvmlReply(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Output of the NVML child: a reading, or why there is none.

    failed:  NVML's error code (nvmlReturn_t); 0 with a reading
    """

    reading: GpuReading | None = None
    failed: int = 0
    text: str = ""
