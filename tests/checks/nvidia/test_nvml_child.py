"""The NVML child against a stand-in for pynvml; test_library.py has the real child against a real shared library."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from tests.checks.nvidia.fake_nvml import (
    CORRUPTED_INFOROM,
    LOST,
    MISMATCH,
    NO_PERMISSION,
    NOT_LOADED,
    NOT_SUPPORTED,
    RESET_REQUIRED,
    UNKNOWN,
    Error,
    FakeNvml,
    fields,
    filling,
    h100,
)

from muster_checks.nvidia.gpu import (
    BankHistogram,
    ClocksEvent,
    ComputeMode,
    Gpu,
    GpuConfig,
    GpuFabric,
    NvmlReply,
    RecoveryAction,
)
from muster_checks.nvidia.nvml_child import bit_error_rate, read_all


def read(*gpus: "dict[str, Any] | Error", driver: "str | Error" = "580.105.08") -> tuple[Gpu, ...]:
    reading = read_all(FakeNvml(gpus, driver=driver)).reading
    assert reading is not None
    return reading.gpus


def test_a_healthy_gpu_is_read_in_all_its_parts() -> None:
    (gpu,) = read(h100())
    assert (gpu.address, gpu.minor, gpu.lost, gpu.errors) == ("0000:18:00.0", 0, "", {})
    assert (gpu.name, gpu.serial, gpu.memory_total_mib, gpu.mig, gpu.persistence) == (
        "NVIDIA H100 80GB HBM3",
        "1752025031000",
        81559.0,
        False,
        True,
    )
    assert gpu.recovery is RecoveryAction.NONE
    assert (gpu.pcie.generation, gpu.pcie.width, gpu.pcie.replays, gpu.pcie.replay_rollovers) == (5, 16, 150, 0)
    assert (gpu.ecc.enabled, gpu.ecc.volatile.sram_corrected, gpu.ecc.volatile.sram_uncorrected) == (True, 4, 0)
    assert (gpu.ecc.sram_threshold_exceeded, gpu.ecc.tpc_repair_pending, gpu.ecc.unrepairable_memory) == (
        False,
        False,
        None,
    )
    assert (gpu.remapped.pending, gpu.remapped.failure) == (False, False)
    assert gpu.remapped.histogram == BankHistogram(maximum=2560, high=0, partial=0, low=0, none=0)
    assert gpu.retired.pending is None
    temperature = gpu.temperature
    assert (temperature.gpu_c, temperature.memory_c, temperature.t_limit_c) == (29, 37, 58)
    assert (temperature.slowdown_t_limit_c, temperature.shutdown_t_limit_c) == (-2, -8)
    assert (gpu.power.draw_w, gpu.power.limit_w, gpu.power.max_limit_w) == (68.92, 700, 700)
    assert gpu.clocks.events == (ClocksEvent.IDLE,)
    assert gpu.fabric.state == "completed"
    assert (gpu.fabric.summary, gpu.fabric.bandwidth_degraded, gpu.fabric.misconfigured) == ("healthy", False, "")
    assert gpu.nvlinks is not None
    assert [(link.link, link.active, link.version, link.remote) for link in gpu.nvlinks] == [
        (0, True, "4.0", "switch"),
        (1, True, "4.0", "switch"),
    ]
    assert (gpu.nvlinks[0].speed_mb_per_s, gpu.nvlinks[0].replay, gpu.nvlinks[0].effective_ber) == (26562, 0, None)


def test_a_gpu_that_supports_nothing_gives_an_empty_reading_without_errors() -> None:
    assert read({}) == (Gpu(index=0, nvlinks=()),)


@pytest.mark.parametrize("call", sorted(h100()))
@pytest.mark.parametrize("code", [NOT_SUPPORTED, UNKNOWN, NO_PERMISSION, 10])
def test_a_call_that_fails_costs_its_own_field_only(call: str, code: int) -> None:
    (gpu,) = read(h100(**{call: Error(code)}))
    assert gpu.lost == ""
    assert bool(gpu.errors) is (code != NOT_SUPPORTED) or call in ("TemperatureV", "MemoryErrorCounter")
    others = msgspec.structs.asdict(gpu)
    assert sum(value is not None for value in others.values()) > 10


def test_what_failed_is_named_with_the_words_of_the_driver() -> None:
    (gpu,) = read(h100(RemappedRows=Error(UNKNOWN), PowerUsage=Error(NO_PERMISSION)))
    assert gpu.errors == {"remapped": "Unknown Error"}
    assert gpu.remapped.pending is None


@pytest.mark.parametrize(("code", "text"), [(LOST, "GPU is lost"), (RESET_REQUIRED, "GPU requires restart")])
def test_a_gpu_that_is_lost_at_its_handle_is_reported_and_the_others_are_read(code: int, text: str) -> None:
    lost, sound = read(Error(code), h100())
    assert (lost.index, lost.lost, lost.address) == (0, text, "")
    assert (sound.index, sound.lost, sound.name) == (1, "", "NVIDIA H100 80GB HBM3")


def test_a_gpu_that_is_lost_midway_keeps_its_address_and_is_asked_nothing_more() -> None:
    nvml = FakeNvml([h100(EccMode=Error(LOST))])
    reading = read_all(nvml).reading
    assert reading is not None
    (gpu,) = reading.gpus
    assert (gpu.lost, gpu.address, gpu.uuid) == ("GPU is lost", "0000:18:00.0", h100()["UUID"])
    assert nvml.calls[-1] == "EccMode"


def test_a_gpu_whose_field_values_are_lost_is_lost() -> None:
    (gpu,) = read(h100(FieldValues=fields({82: Error(LOST)})))
    assert gpu.lost == "GPU is lost"


def test_a_field_value_that_fails_is_named() -> None:
    (gpu,) = read(h100(FieldValues=fields({82: Error(UNKNOWN), 91: 0})))
    assert gpu.errors == {"fields": "Unknown Error"}


def test_a_handle_that_is_refused_is_no_lost_gpu() -> None:
    (gpu,) = read(Error(NO_PERMISSION))
    assert (gpu.lost, gpu.errors) == ("", {"handle": "Insufficient Permissions"})


@pytest.mark.parametrize("code", [NOT_LOADED, MISMATCH, NO_PERMISSION, UNKNOWN])
def test_a_library_that_does_not_start_gives_its_code_and_words(code: int) -> None:
    answer = read_all(FakeNvml(init=Error(code)))
    assert (answer.reading, answer.failed) == (None, code)
    assert answer.text
    assert read_all(FakeNvml(count=Error(code))).failed == code


def test_a_driver_without_a_version_is_read_nevertheless() -> None:
    answer = read_all(FakeNvml([h100()], driver=Error(UNKNOWN)))
    assert answer.reading is not None
    assert answer.reading.driver_version is None
    assert len(answer.reading.gpus) == 1


@pytest.mark.parametrize(("driver", "thermal"), [("580.105.08", 252), ("590.44.01", 270), ("garbage", 252)])
def test_the_times_of_slowdowns_are_read_under_the_numbers_of_their_driver(driver: str, thermal: int) -> None:
    (gpu,) = read(h100(FieldValues=fields({thermal: 3_000_000_000, 74: 2_000_000_000, 91: 0})), driver=driver)
    assert gpu.clocks.held_s == {ClocksEvent.HW_THERMAL: 3.0, ClocksEvent.SW_POWER_CAP: 2.0}


def test_every_bit_of_the_clocks_events_has_its_name() -> None:
    (gpu,) = read(h100(CurrentClocksEventReasons=0x1FF))
    assert gpu.clocks.events is not None
    assert set(gpu.clocks.events) == set(ClocksEvent)


def test_an_older_driver_answers_by_the_older_names() -> None:
    older = h100(
        CurrentClocksEventReasons=Error(13),
        CurrentClocksThrottleReasons=0x48,
        TemperatureV=Error(13),
        Temperature=41,
        TemperatureThreshold=lambda which: (96, 93, 95, 85)[which],
        FieldValues=fields({91: 1}),
        PowerUsage=33510,
        SramEccErrorStatus=Error(13),
        NvLinkErrorCounter=lambda _, counter: (7, 1, 20, 3)[counter],
    )
    (gpu,) = read(older)
    assert gpu.errors == {}
    assert gpu.clocks.events == (ClocksEvent.HW_SLOWDOWN, ClocksEvent.HW_THERMAL)
    assert (gpu.temperature.gpu_c, gpu.temperature.slowdown_c, gpu.temperature.shutdown_c) == (41, 93, 96)
    assert gpu.power.draw_w == 33.51
    assert (gpu.ecc.volatile.sram_corrected, gpu.ecc.volatile.sram_uncorrected_parity) == (0, None)
    assert gpu.nvlinks is not None
    assert (gpu.nvlinks[0].replay, gpu.nvlinks[0].recovery, gpu.nvlinks[0].crc) == (7, 1, 23)


def test_a_function_that_the_installed_library_does_not_have_is_not_supported() -> None:
    class Old(FakeNvml):
        def __getattr__(self, name: str) -> Any:
            if name in ("nvmlDeviceGetRepairStatus", "c_nvmlGpuFabricInfo_v3_t"):
                raise AttributeError(name)
            return super().__getattr__(name)

    reading = read_all(Old([h100(GpuFabricInfoV=filling(state=2, healthMask=0))])).reading
    assert reading is not None
    assert reading.gpus[0].ecc.tpc_repair_pending is None
    assert (reading.gpus[0].fabric.state, reading.gpus[0].errors) == ("in-progress", {})


def test_without_ecc_no_counts_are_asked_for() -> None:
    nvml = FakeNvml([h100(EccMode=[0, 1])])
    reading = read_all(nvml).reading
    assert reading is not None
    assert (reading.gpus[0].ecc.enabled, reading.gpus[0].ecc.pending_enabled) == (False, True)
    assert "TotalEccErrors" not in nvml.calls


def test_retired_pages_are_counted_by_cause() -> None:
    pages: dict[int, list[int]] = {0: [1, 2, 3], 1: [4]}
    (gpu,) = read(h100(RetiredPages=lambda cause: pages[cause], RetiredPagesPendingStatus=1))
    assert (gpu.retired.single_bit, gpu.retired.double_bit, gpu.retired.pending) == (3, 1, True)


def test_the_configuration_of_a_gpu_is_read() -> None:
    (gpu,) = read(h100())
    assert gpu.config == GpuConfig(
        inforom_valid=True,
        mig_pending=False,
        compute_mode=ComputeMode.DEFAULT,
        processes=0,
        memory_allocated_mib=0.0,
        numa_memory=False,
        application_graphics_mhz=1980,
        application_memory_mhz=1980,
        default_application_graphics_mhz=1980,
        default_application_memory_mhz=1980,
    )


def test_a_corrupt_inforom_is_a_finding_and_no_error() -> None:
    (gpu,) = read(h100(ValidateInforom=Error(CORRUPTED_INFOROM)))
    assert (gpu.config.inforom_valid, gpu.errors) == (False, {})


@pytest.mark.parametrize("code", [UNKNOWN, NO_PERMISSION])
def test_an_inforom_that_cannot_be_read_is_not_called_corrupt(code: int) -> None:
    (gpu,) = read(h100(ValidateInforom=Error(code)))
    assert gpu.config.inforom_valid is None
    assert list(gpu.errors) == ["config.inforom_valid"]


def test_an_inforom_behind_which_the_gpu_is_lost_loses_it() -> None:
    assert read(h100(ValidateInforom=Error(LOST)))[0].lost == "GPU is lost"


def test_a_library_without_the_validation_does_not_tell() -> None:
    class Old(FakeNvml):
        nvmlDeviceValidateInforom = None  # type: ignore[assignment] # noqa: N815 - as if it were not there

    reading = read_all(Old([h100()])).reading
    assert reading is not None
    assert (reading.gpus[0].config.inforom_valid, reading.gpus[0].errors) == (None, {})


@pytest.mark.parametrize(
    ("number", "mode"),
    [
        (0, ComputeMode.DEFAULT),
        (1, ComputeMode.EXCLUSIVE_THREAD),
        (2, ComputeMode.PROHIBITED),
        (3, ComputeMode.EXCLUSIVE_PROCESS),
        (4, None),
    ],
)
def test_every_compute_mode_has_its_name(number: int, mode: ComputeMode | None) -> None:
    assert read(h100(ComputeMode=number))[0].config.compute_mode is mode


def test_a_process_that_is_listed_twice_counts_once() -> None:
    job, server, screen = (SimpleNamespace(pid=pid) for pid in (10, 20, 30))
    (gpu,) = read(
        h100(
            ComputeRunningProcesses_v3=[job],
            GraphicsRunningProcesses_v3=[job, screen],
            MPSComputeRunningProcesses_v3=[server],
        )
    )
    assert gpu.config.processes == 3


def test_an_older_driver_lists_its_processes_by_the_older_name() -> None:
    (gpu,) = read(h100(ComputeRunningProcesses_v3=Error(13), ComputeRunningProcesses_v2=[SimpleNamespace(pid=1)]))
    assert (gpu.config.processes, gpu.errors) == (1, {})


def test_processes_that_cannot_be_listed_are_not_none() -> None:
    (gpu,) = read(h100(ComputeRunningProcesses_v3=Error(NO_PERMISSION)))
    assert (gpu.config.processes, list(gpu.errors)) == (None, ["config.processes"])


def test_in_mig_mode_processes_are_not_asked_for() -> None:
    nvml = FakeNvml([h100(MigMode=[1, 0], ComputeRunningProcesses_v3=Error(NO_PERMISSION))])
    reading = read_all(nvml).reading
    assert reading is not None
    gpu = reading.gpus[0]
    assert (gpu.mig, gpu.config.mig_pending, gpu.config.processes, gpu.errors) == (True, False, None, {})


def test_allocated_memory_is_told_by_the_second_version_only() -> None:
    def memory(*version: int) -> Any:
        return SimpleNamespace(total=81559 << 20, used=512 << 20) if not version else Error(13)

    (gpu,) = read(h100(MemoryInfo=memory))
    assert (gpu.memory_used_mib, gpu.config.memory_allocated_mib, gpu.errors) == (512.0, None, {})


@pytest.mark.parametrize(
    ("said", "numa"),
    [
        ({"AddressingMode": 2}, True),
        ({"AddressingMode": 0}, False),
        ({"AddressingMode": Error(13), "NumaNodeId": 2}, True),
        ({"AddressingMode": Error(13), "NumaNodeId": Error(NOT_SUPPORTED)}, None),
    ],
)
def test_memory_that_is_a_numa_node_of_the_host_is_known(said: dict[str, Any], numa: bool | None) -> None:
    assert read(h100(**said))[0].config.numa_memory is numa


def test_links_are_counted_by_asking_where_the_driver_has_no_number() -> None:
    def state(link: int) -> Any:
        return (1, 0)[link] if link < 2 else Error(2)

    (gpu,) = read(h100(FieldValues=fields({}), NvLinkState=state))
    assert gpu.nvlinks is not None
    assert [(link.link, link.active) for link in gpu.nvlinks] == [(0, True), (1, False)]


def test_a_link_that_cannot_be_read_is_there_and_named() -> None:
    (gpu,) = read(h100(NvLinkState=lambda link: Error(UNKNOWN) if link else 1))
    assert gpu.nvlinks is not None
    assert [link.active for link in gpu.nvlinks] == [True, None]
    assert gpu.errors == {"nvlink.1": "Unknown Error"}


def test_nvlink_5_has_bit_error_rates_and_counts_recoveries_under_another_name() -> None:
    link = {(219, 0): 5, (220, 0): (3 << 8) | 9, (221, 0): 6, (222, 0): 4095, (214, 0): 1, (215, 0): 2, (164, 0): 53125}
    (gpu,) = read(h100(FieldValues=fields({91: 1, **link}), NvLinkVersion=7))
    assert gpu.nvlinks is not None
    assert (gpu.nvlinks[0].version, gpu.nvlinks[0].recovery, gpu.nvlinks[0].recovery_failed) == ("5.0", 2, 1)
    assert gpu.nvlinks[0].effective_ber == pytest.approx(3e-9)
    assert gpu.nvlinks[0].symbol_ber == pytest.approx(0.0, abs=1e-200)
    assert (gpu.nvlinks[0].effective_errors, gpu.nvlinks[0].symbol_errors) == (5, 6)


def test_a_bit_error_rate_is_a_mantissa_and_a_negative_exponent() -> None:
    assert bit_error_rate(0x50C) == pytest.approx(5e-12)
    assert bit_error_rate(0) == 0.0


@pytest.mark.parametrize(
    ("mask", "expected"),
    [
        (0x1, {"bandwidth_degraded": True}),
        (0x10 | 0x2, {"route_unhealthy": True, "bandwidth_degraded": False}),
        (0x4, {"route_recovery": True}),
        (0x40, {"access_timeout_recovery": True}),
        (0x500, {"misconfigured": "insufficient NVLinks"}),
        (0x100, {"misconfigured": ""}),
        (0xF00, {}),
    ],
)
def test_the_fabric_health_mask_is_taken_apart(mask: int, expected: dict[str, object]) -> None:
    info = filling(state=3, status=0, healthMask=mask, healthSummary=2)
    (gpu,) = read(h100(GpuFabricInfoV=info))
    sound: dict[str, Any] = {"state": "completed", "status": "", "clique": 0, "cluster_uuid": "0" * 32}
    assert gpu.fabric == GpuFabric(**(sound | {"summary": "unhealthy"} | expected))


def test_the_error_of_a_registration_is_named() -> None:
    (gpu,) = read(h100(GpuFabricInfoV=filling(state=3, status=UNKNOWN, healthMask=0)))
    assert gpu.fabric.status == "Unknown Error"
    assert gpu.fabric.summary is None


@pytest.mark.parametrize(("number", "action"), list(enumerate(RecoveryAction)))
def test_every_recovery_action_has_its_name(number: int, action: RecoveryAction) -> None:
    assert read(h100(FieldValues=fields({230: number, 91: 0})))[0].recovery is action


def test_a_recovery_action_newer_than_this_is_named_not_guessed() -> None:
    (gpu,) = read(h100(FieldValues=fields({230: 42, 91: 0})))
    assert gpu.recovery is None
    assert "42" in gpu.errors["recovery"]


def test_what_ctypes_cannot_make_of_an_answer_is_named() -> None:
    def broken(*_: object) -> Any:
        raise UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte")

    (gpu,) = read(h100(Name=broken))
    assert (gpu.name, gpu.errors) == (None, {"name": "UnicodeDecodeError"})


def test_device_files_that_can_be_opened_are_listed(tmp_path: Path) -> None:
    for name in ("nvidia0", "nvidia10", "nvidiactl", "nvidia-uvm", "null"):
        (tmp_path / name).touch()
    reading = read_all(FakeNvml([]), tmp_path).reading
    assert reading is not None
    assert reading.visible == (0, 10)


def test_every_reading_survives_its_way_through_json() -> None:
    answer = read_all(FakeNvml([h100(), Error(LOST), h100(EccMode=Error(LOST)), {}]))
    assert msgspec.json.decode(msgspec.json.encode(answer), type=NvmlReply) == answer


@pytest.mark.parametrize("kind", range(9))
def test_a_field_value_has_one_of_several_types(kind: int) -> None:
    def typed(_: object) -> list[Any]:
        value = SimpleNamespace(dVal=1.0, uiVal=1, ulVal=1, ullVal=1, sllVal=1, siVal=1, usVal=1)
        return [SimpleNamespace(nvmlReturn=0, valueType=kind, value=value)]

    (gpu,) = read(h100(FieldValues=typed))
    assert gpu.temperature.memory_c == 1
