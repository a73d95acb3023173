"""The output of `nvidia-smi -q -x`, whole and spoilt."""

from contextlib import suppress
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.checks.bad_input import TEXTS, UNMEASURED, huge, mangled
from tests.checks.nvidia.samples_of import H100, LOST, T4
from tests.shared_data import SharedData

from muster_checks.base.bounded_read import Unreadable
from muster_checks.nvidia.gpu import ClocksEvent, ComputeMode, Gpu, GpuConfig, GpuReading, RecoveryAction
from muster_checks.nvidia.smi_xml import is_smi_xml, parse, parse_if_smi_xml


def one(inside: str) -> Gpu:
    text = f'<nvidia_smi_log><gpu id="00000000:3B:00.0">{inside}</gpu></nvidia_smi_log>'
    (gpu,) = parse(text.encode()).gpus
    return gpu


def test_eight_h100_are_read() -> None:
    reading = parse(H100)
    assert (reading.source, reading.driver_version, len(reading.gpus)) == ("nvidia-smi", "580.95.05", 8)
    gpu = reading.gpus[0]
    assert (gpu.address, gpu.name, gpu.recovery, gpu.lost, gpu.errors) == (
        "0000:18:00.0",
        "NVIDIA H100 80GB HBM3",
        RecoveryAction.NONE,
        "",
        {},
    )
    assert (gpu.pcie.generation, gpu.pcie.width, gpu.pcie.replays) == (5, 16, 7)
    assert (gpu.remapped.pending, gpu.remapped.histogram and gpu.remapped.histogram.maximum) == (False, 2560)
    assert (gpu.temperature.t_limit_c, gpu.temperature.shutdown_t_limit_c) == (56, -8)
    assert (gpu.fabric.state, gpu.fabric.status, gpu.nvlinks) == ("completed", "", None)
    assert gpu.clocks.held_s[ClocksEvent.SW_POWER_CAP] == pytest.approx(412.00025)
    assert gpu.ecc.sram_threshold_exceeded is False


def test_the_recorded_h100_are_read(shared_data: SharedData) -> None:
    reading = parse(shared_data.read("nvidia-smi/qx-h100.xml"))
    assert (reading.driver_version, len(reading.gpus)) == ("580.105.08", 8)
    gpu = reading.gpus[0]
    assert (gpu.address, gpu.errors, gpu.pcie.replays) == ("0000:53:00.0", {}, 150)
    assert (gpu.temperature.t_limit_c, gpu.temperature.shutdown_t_limit_c) == (58, -8)
    assert gpu.clocks.held_s[ClocksEvent.SW_POWER_CAP] == pytest.approx(7015.662857)
    (gpu,) = parse(shared_data.read("nvidia-smi/qx-t4.xml")).gpus
    assert (gpu.temperature.slowdown_c, gpu.retired.pending, gpu.errors) == (93, False, {})


def test_the_configuration_of_the_h100_is_read() -> None:
    assert parse(H100).gpus[0].config == GpuConfig(
        mig_pending=False,
        compute_mode=ComputeMode.DEFAULT,
        processes=0,
        memory_allocated_mib=0,
        numa_memory=False,
        application_graphics_mhz=1980,
        application_memory_mhz=2619,
        default_application_graphics_mhz=1980,
        default_application_memory_mhz=2619,
    )


def test_application_clocks_that_a_driver_has_no_more_are_none() -> None:
    (gpu,) = parse(T4).gpus
    assert (gpu.config.application_graphics_mhz, gpu.config.mig_pending, gpu.errors) == (None, None, {})


@pytest.mark.parametrize("whole", ["{warning}\n{document}", "{document}\n{warning}\n", "{document}\r\n{warning} \r\n"])
def test_a_warning_of_a_corrupt_inforom_beside_the_document_is_read(whole: str) -> None:
    warning = "WARNING: infoROM is corrupted at gpu 0000:2a:00.0"
    reading = parse(whole.format(warning=warning, document=H100.decode()).encode())
    assert [gpu.config.inforom_valid for gpu in reading.gpus] == [None, False, *[None] * 6]


def test_other_words_behind_the_document_are_unreadable() -> None:
    with pytest.raises(Unreadable):
        parse(H100 + b"WARNING: the moon is full\n")


@pytest.mark.parametrize(
    ("inside", "expected"),
    [
        ("<processes></processes>", 0),
        ("<processes>N/A</processes>", None),
        ("", None),
        ("<processes><process_info><pid>7</pid></process_info></processes>", 1),
        (f"<processes>{'<process_info><pid>7</pid></process_info>' * 2}</processes>", 1),
        ("<mig_mode><current_mig>Enabled</current_mig></mig_mode><processes></processes>", None),
    ],
)
def test_processes_are_counted_where_they_are_told(inside: str, expected: int | None) -> None:
    assert one(inside).config.processes == expected


def test_used_memory_without_a_word_on_the_reserved_is_not_called_allocated() -> None:
    used = "<fb_memory_usage><used>450 MiB</used></fb_memory_usage>"
    assert (one(used).memory_used_mib, one(used).config.memory_allocated_mib) == (450.0, None)


@pytest.mark.parametrize(
    ("said", "mode"),
    [
        ("Exclusive_Process", ComputeMode.EXCLUSIVE_PROCESS),
        ("Exclusive_Thread", ComputeMode.EXCLUSIVE_THREAD),
        ("Prohibited", ComputeMode.PROHIBITED),
        ("Sunday", None),
    ],
)
def test_compute_modes_are_read_in_nvidia_smis_words(said: str, mode: ComputeMode | None) -> None:
    assert one(f"<compute_mode>{said}</compute_mode>").config.compute_mode is mode


def test_memory_that_is_a_numa_node_is_read_by_its_addressing_mode() -> None:
    assert one("<addressing_mode>ATS</addressing_mode>").config.numa_memory is True


def test_a_t4_has_no_rows_but_pages_and_limits_in_degrees() -> None:
    (gpu,) = parse(T4).gpus
    assert (gpu.remapped.pending, gpu.retired.single_bit, gpu.retired.pending) == (None, 0, False)
    assert (gpu.temperature.slowdown_c, gpu.temperature.shutdown_c, gpu.temperature.t_limit_c) == (93, 96, None)
    assert (gpu.pcie.width, gpu.pcie.width_max, gpu.ecc.aggregate.dram_corrected) == (8, 16, 2)
    assert gpu.errors == {}


def test_a_lost_gpu_is_lost_and_keeps_its_identity() -> None:
    sound, lost = parse(LOST).gpus
    assert (sound.lost, sound.remapped.failure, sound.ecc.volatile.dram_uncorrected) == ("", True, 3)
    assert (lost.lost, lost.address, lost.serial) == ("GPU is lost", "0001:0d:00.0", "1752025031001")
    assert lost.fabric.state is None
    assert lost.temperature.gpu_c is None


@pytest.mark.parametrize("said", ["Unknown Error", "[Unknown Error]", "Insufficient Permissions", "ERR!"])
def test_what_the_driver_could_not_say_is_named(said: str) -> None:
    gpu = one(f"<temperature><gpu_temp>{said}</gpu_temp></temperature>")
    assert (gpu.temperature.gpu_c, gpu.errors) == (None, {"temperature.gpu_c": said})


@pytest.mark.parametrize("said", ["N/A", "[N/A]", "[Not Supported]", "", "Requested functionality has been deprecated"])
def test_what_the_gpu_does_not_have_is_no_error(said: str) -> None:
    gpu = one(f"<temperature><gpu_temp>{said}</gpu_temp></temperature><remapped_rows>{said}</remapped_rows>")
    assert (gpu.temperature.gpu_c, gpu.errors) == (None, {})


def test_older_drivers_are_read_under_their_names() -> None:
    gpu = one(
        "<clocks_throttle_reasons><clocks_throttle_reason_hw_slowdown>Active</clocks_throttle_reason_hw_slowdown>"
        "</clocks_throttle_reasons><power_readings><power_draw>41.20 W</power_draw><power_limit>250.00 W</power_limit>"
        "<enforced_power_limit>240.00 W</enforced_power_limit></power_readings><ecc_errors><volatile>"
        "<single_bit><device_memory>1</device_memory><total>3</total></single_bit>"
        "<double_bit><device_memory>2</device_memory><total>2</total></double_bit></volatile></ecc_errors>"
    )
    assert gpu.clocks.events == (ClocksEvent.HW_SLOWDOWN,)
    assert (gpu.power.draw_w, gpu.power.limit_w, gpu.power.requested_limit_w) == (41.2, 240.0, 250.0)
    volatile = gpu.ecc.volatile
    assert (volatile.corrected, volatile.dram_corrected, volatile.uncorrected, volatile.dram_uncorrected) == (
        3,
        1,
        2,
        2,
    )


@pytest.mark.parametrize(
    ("said", "action"),
    [
        ("None", RecoveryAction.NONE),
        ("Reset", RecoveryAction.RESET),
        ("Reboot", RecoveryAction.REBOOT),
        ("Drain P2P", RecoveryAction.DRAIN_P2P),
        ("Drain and Reset", RecoveryAction.DRAIN_AND_RESET),
    ],
)
def test_recovery_actions_are_read_in_nvidia_smis_words(said: str, action: RecoveryAction) -> None:
    assert one(f"<gpu_recovery_action>{said}</gpu_recovery_action>").recovery is action


def test_a_recovery_action_newer_than_this_is_named_not_guessed() -> None:
    gpu = one("<gpu_recovery_action>Replace Fuse</gpu_recovery_action>")
    assert gpu.recovery is None
    assert "Replace Fuse" in gpu.errors["recovery"]


def test_fabric_health_is_read_in_nvidia_smis_words() -> None:
    gpu = one(
        "<fabric><state>In Progress</state><status>Unspecified</status><health><summary>Limited Capacity</summary>"
        "<bandwidth>Degraded</bandwidth><route_recovery_in_progress>True</route_recovery_in_progress>"
        "<route_unhealthy>False</route_unhealthy><access_timeout_recovery>False</access_timeout_recovery>"
        "<incorrect_configuration>Insufficient Nvlinks</incorrect_configuration></health></fabric>"
    )
    fabric = gpu.fabric
    assert (fabric.state, fabric.status, fabric.summary) == ("in-progress", "Unspecified", "limited-capacity")
    assert (fabric.bandwidth_degraded, fabric.route_recovery, fabric.route_unhealthy) == (True, True, False)
    assert fabric.misconfigured == "Insufficient Nvlinks"
    assert one("<fabric><health><incorrect_configuration>None</incorrect_configuration></health></fabric>").fabric == (
        type(fabric)(misconfigured="")
    )


def test_a_gpu_without_any_address_is_read() -> None:
    (gpu,) = parse(b"<nvidia_smi_log><gpu/></nvidia_smi_log>").gpus
    assert (gpu.address, gpu.component) == ("", "gpu/index-0")


def test_a_document_that_lost_a_gpu_on_the_way_is_unreadable() -> None:
    root = ElementTree.fromstring(H100)  # noqa: S314 - our own sample
    root.remove(root.findall("gpu")[3])
    with pytest.raises(Unreadable, match="attached_gpus"):
        parse(ElementTree.tostring(root))


def test_entities_are_refused_before_they_expand() -> None:
    bomb = b'<!DOCTYPE x [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;">]><nvidia_smi_log>&b;</nvidia_smi_log>'
    with pytest.raises(Unreadable, match="entities"):
        parse(bomb)
    with pytest.raises(Unreadable):
        parse(bomb.decode().encode("utf-16"))


def test_a_huge_text_is_refused_before_it_is_parsed() -> None:
    with pytest.raises(Unreadable, match="100 MiB"):
        parse(huge(H100[:1000]) + b"  " * 1024)


def test_deeply_nested_elements_are_read_or_unreadable() -> None:
    assert parse(b"<nvidia_smi_log>" + b"<a>" * 100_000 + b"</a>" * 100_000 + b"</nvidia_smi_log>").gpus == ()


@pytest.mark.parametrize("text", TEXTS)
def test_other_texts_are_unreadable(text: bytes) -> None:
    with pytest.raises(UNMEASURED):
        parse(text)


def test_other_documents_are_unreadable() -> None:
    with pytest.raises(Unreadable, match="expected <nvidia_smi_log>"):
        parse(b"<html></html>")


@pytest.mark.parametrize("sample", [T4, LOST])
def test_a_document_cut_short_anywhere_is_unreadable_or_whole(sample: bytes) -> None:
    whole = parse(sample)
    for text in mangled(sample):
        with suppress(*UNMEASURED):
            assert parse(text) == whole


VALUES = ("N/A", "[Unknown Error]", "", "-1", "1e308", "nan", "99999999999999999999999", "16x")


def _leaves(root: ElementTree.Element) -> list[ElementTree.Element]:
    return [element for element in root.iter() if len(element) == 0 and element.tag != "attached_gpus"]


def test_any_value_at_any_place_is_read() -> None:
    root = ElementTree.fromstring(T4)  # noqa: S314 - our own sample
    for place, element in enumerate(_leaves(root)):
        before, element.text = element.text, VALUES[place % len(VALUES)]
        assert isinstance(parse(ElementTree.tostring(root)), GpuReading)
        element.text = before


@pytest.mark.parametrize("value", VALUES)
def test_the_same_value_everywhere_is_read(value: str) -> None:
    root = ElementTree.fromstring(T4)  # noqa: S314 - our own sample
    for element in _leaves(root):
        element.text = value
    assert isinstance(parse(ElementTree.tostring(root)), GpuReading)


@given(st.binary(max_size=300))
@settings(max_examples=100, deadline=None)
def test_any_bytes_inside_are_read_or_unreadable(text: bytes) -> None:
    with suppress(*UNMEASURED):
        parse(b"<nvidia_smi_log><gpu><uuid>" + text + b"</uuid></gpu></nvidia_smi_log>")


def test_recorded_output_is_known_by_its_root() -> None:
    assert is_smi_xml(H100)
    assert parse_if_smi_xml(b"GPU 0: NVIDIA H100") is None
    reading = parse_if_smi_xml(T4)
    assert reading is not None
    assert len(reading.gpus) == 1
    with pytest.raises(Unreadable):
        parse_if_smi_xml(H100[:5000])
