"""The check ``disk``: what disks say of themselves, through smartctl or nvme."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from tests.checks.bad_input import NO_VALUES, TEXTS, any_json, huge, mangled, replaced
from tests.wording.facts import missing_facts

from muster_checks.base.bounded_read import Unreadable
from muster_checks.base.commands import Output
from muster_checks.base.declaration import NodeView
from muster_checks.base.execution import run_probe, run_recorded
from muster_checks.base.vocabulary import FaultClass, Result, Verdict
from muster_checks.disk import DISK, DiskParameters
from muster_checks.disk.smart import SmartHealth, parse_nvme, parse_smartctl
from muster_checks.testing.recorded import Answer, failed, hung, lay_out, node

SAMPLES = Path(__file__).parent / "samples"
SOUND = (SAMPLES / "smartctl_nvme.json").read_bytes()
FAILING = (SAMPLES / "smartctl_nvme_failing.json").read_bytes()
ATA_FAILING = (SAMPLES / "smartctl_ata_failing.json").read_bytes()
VIRTUAL = (SAMPLES / "smartctl_virtual.json").read_bytes()
FORBIDDEN = (SAMPLES / "smartctl_forbidden.json").read_bytes()
NO_DEVICE = (SAMPLES / "smartctl_no_device.json").read_bytes()
GONE = (SAMPLES / "smartctl_device_gone.json").read_bytes()
NO_FILE = (SAMPLES / "smartctl_no_file.json").read_bytes()
NVME = (SAMPLES / "nvme_smart_log.json").read_bytes()
NO_ANSWER = b'{"smartctl": {"version": [7, 3], "exit_status": 4}, "device": {"name": "/dev/sda", "protocol": "ATA"}}'
VIRTUAL_4 = json.loads(VIRTUAL)
VIRTUAL_4["smartctl"]["exit_status"] = 4
SMARTCTL = "smartctl -j -i -H -A"


class Clock:
    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


def with_nvme(root: Path, answers: dict[str, Answer], clock: Clock | None = None) -> NodeView:
    lay_out(root, {"/sys/class/nvme/nvme0/state": "live", "/sys/class/nvme/nvme0/transport": "pcie"})
    return node(root, answers, clock or Clock())


def with_sda(root: Path, answers: dict[str, Answer]) -> NodeView:
    return node(lay_out(root, {"/sys/block/sda/device/state": "running", "/sys/block/sda/removable": 0}), answers)


async def run(view: NodeView, **parameters: Any) -> Result:
    return await run_probe(DISK, view, DiskParameters(**parameters))


def reasons(result: Result | None) -> dict[str, Verdict]:
    assert result is not None
    return {finding.reason: finding.verdict for finding in result.findings}


def judged(text: bytes, **parameters: Any) -> dict[str, Verdict]:
    return reasons(run_recorded(DISK, text, DiskParameters(**parameters)))


def changed(text: bytes, **values: object) -> bytes:
    document = json.loads(text)
    document["nvme_smart_health_information_log"].update(values)
    return json.dumps(document).encode()


async def test_a_sound_disk_passes_with_one_finding_and_its_measurements(tmp_path: Path) -> None:
    result = await run(with_nvme(tmp_path, {SMARTCTL: SOUND}))
    [finding] = result.findings
    assert (finding.component, finding.verdict) == ("disk/nvme0", Verdict.PASS)
    values = {m.name: (m.value, m.threshold) for m in finding.measurements}
    assert values == {"spare": (100, 10), "wear": (3, None), "media_errors": (0, None), "temperature": (36, None)}


def test_a_failing_disk_says_all_it_has() -> None:
    result = run_recorded(DISK, FAILING, DiskParameters())
    assert reasons(result) == {
        "NvmeUnreliable": Verdict.FAIL,
        "NvmeReadOnly": Verdict.FAIL,
        "NvmeSpareLow": Verdict.FAIL,
        "NvmeWornOut": Verdict.WARN,
    }
    assert result is not None
    assert {finding.component for finding in result.findings} == {"disk/nvme3"}
    assert {finding.fault_class for finding in result.findings} == {FaultClass.REPLACE}


@pytest.mark.parametrize(
    ("bits", "expected"),
    [
        (0x01, {"NvmeSpareLow": Verdict.FAIL}),
        (0x02, {"NvmeTemperature": Verdict.WARN}),
        (0x04, {"NvmeUnreliable": Verdict.FAIL}),
        (0x08, {"NvmeReadOnly": Verdict.FAIL}),
        (0x10, {"NvmeBackupFailed": Verdict.WARN}),
        (0x20, {"NvmePmrUnreliable": Verdict.WARN}),
        (0x40, {"NvmeCriticalWarning": Verdict.WARN}),
        (0x00, {"Ok": Verdict.PASS}),
    ],
)
def test_each_critical_warning(bits: int, expected: dict[str, Verdict]) -> None:
    assert judged(changed(SOUND, critical_warning=bits)) == expected


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"available_spare": 10}, {"Ok": Verdict.PASS}),
        ({"available_spare": 9}, {"NvmeSpareLow": Verdict.FAIL}),
        ({"available_spare": 0, "available_spare_threshold": 0}, {"Ok": Verdict.PASS}),  # as cloud volumes say
        ({"percentage_used": 99}, {"Ok": Verdict.PASS}),
        ({"percentage_used": 100}, {"NvmeWornOut": Verdict.WARN}),
        ({"media_errors": 37}, {"Ok": Verdict.PASS}),
        ({"critical_warning": 255}, {"Ok": Verdict.PASS}),  # all ones: not read; the rest is judged
    ],
)
def test_limits(values: dict[str, object], expected: dict[str, Verdict]) -> None:
    assert judged(changed(SOUND, **values)) == expected


def test_the_wear_limit_can_be_set() -> None:
    assert judged(changed(SOUND, percentage_used=80), max_wear_percent=80) == {"NvmeWornOut": Verdict.WARN}


async def test_media_errors_are_judged_by_their_rise_within_a_day(tmp_path: Path) -> None:
    clock = Clock()
    texts = iter([37, 37, 38, 38, 38])
    view = with_nvme(tmp_path, {SMARTCTL: lambda _: changed(SOUND, media_errors=next(texts))}, clock)
    expected = [Verdict.PASS, Verdict.PASS, Verdict.WARN, Verdict.WARN]
    for verdict in expected:
        assert (await run(view)).verdict is verdict
        clock.now += 300
    clock.now += 2 * 86_400
    assert (await run(view)).verdict is Verdict.PASS


async def test_nvme_answers_where_smartctl_is_not_installed(tmp_path: Path) -> None:
    [finding] = (await run(with_nvme(tmp_path, {"nvme smart-log": NVME}))).findings
    assert (finding.component, finding.verdict) == ("disk/nvme0", Verdict.PASS)
    assert {m.name: m.value for m in finding.measurements}["temperature"] == 35


async def test_without_a_tool_an_nvme_disk_is_unknown_and_says_what_to_install(tmp_path: Path) -> None:
    result = await run(with_nvme(tmp_path, {}))
    assert reasons(result) == {"ToolMissing": Verdict.UNKNOWN}
    assert "smartmontools" in result.message


async def test_disks_need_not_be_asked(tmp_path: Path) -> None:
    assert reasons(await run(with_nvme(tmp_path, {}), smart=False)) == {"Ok": Verdict.PASS}


async def test_a_disk_over_the_network_and_a_dead_one_are_not_asked(tmp_path: Path) -> None:
    view = with_nvme(tmp_path, {})
    lay_out(tmp_path, {"/sys/class/nvme/nvme0/transport": "tcp", "/sys/class/nvme/nvme1/state": "dead"})
    assert reasons(await run(view)) == {"Ok": Verdict.PASS, "NvmeDead": Verdict.FAIL}


@pytest.mark.parametrize(
    "answer",
    [
        FORBIDDEN,
        NO_DEVICE,
        VIRTUAL,
        failed(SMARTCTL, 1),
        failed(SMARTCTL, 127, b"smartctl: error while loading shared libraries"),
        failed(SMARTCTL, -11),
        hung(SMARTCTL),
        b'{"smartctl": {"exit_status": 0}}',
        *TEXTS,
    ],
)
async def test_an_nvme_disk_that_does_not_answer_is_unknown(tmp_path: Path, answer: Output | bytes) -> None:
    assert reasons(await run(with_nvme(tmp_path, {SMARTCTL: answer}))) == {"NotReadable": Verdict.UNKNOWN}


async def test_a_hundred_megabytes_are_unknown(tmp_path: Path) -> None:
    assert (await run(with_nvme(tmp_path, {SMARTCTL: huge(SOUND)}))).verdict is Verdict.PASS
    assert (await run(with_nvme(tmp_path, {SMARTCTL: huge(b"[" * 9)}))).verdict is Verdict.UNKNOWN


async def test_a_sata_disk_that_predicts_its_failure_fails_whatever_the_exit_code(tmp_path: Path) -> None:
    result = await run(with_sda(tmp_path, {SMARTCTL: failed(SMARTCTL, 24, stdout=ATA_FAILING)}))
    assert reasons(result) == {"SmartFailed": Verdict.FAIL}
    assert result.findings[0].fault_class is FaultClass.REPLACE
    assert (await run(with_sda(tmp_path, {SMARTCTL: ATA_FAILING.replace(b"false", b"true")}))).verdict is Verdict.PASS


@pytest.mark.parametrize("answer", [VIRTUAL, NO_DEVICE, None])
async def test_a_scsi_disk_without_smart_is_judged_by_its_state_alone(tmp_path: Path, answer: bytes | None) -> None:
    view = with_sda(tmp_path, {} if answer is None else {SMARTCTL: answer})
    assert reasons(await run(view)) == {"Ok": Verdict.PASS}


@pytest.mark.parametrize("disk", [with_nvme, with_sda])
async def test_a_disk_that_was_added_after_the_start_of_the_agents_container_is_unknown(
    tmp_path: Path, disk: Callable[[Path, dict[str, Answer]], NodeView]
) -> None:
    result = await run(disk(tmp_path, {SMARTCTL: NO_FILE}))
    assert reasons(result) == {"NoDeviceFile": Verdict.UNKNOWN}
    assert not missing_facts(result.message, "/dev/sdz", "No such device")


@pytest.mark.parametrize("disk", [with_nvme, with_sda])
async def test_a_disk_whose_device_file_leads_to_no_device_is_unknown_with_a_reason_of_its_own(
    tmp_path: Path, disk: Callable[[Path, dict[str, Answer]], NodeView]
) -> None:
    result = await run(disk(tmp_path, {SMARTCTL: GONE}))
    assert reasons(result) == {"DeviceGone": Verdict.UNKNOWN}
    assert not missing_facts(result.message, "/dev/sdz", "or address")


@pytest.mark.parametrize("answer", [FORBIDDEN, hung(SMARTCTL)])
async def test_a_scsi_disk_that_may_not_be_asked_is_unknown(tmp_path: Path, answer: Output | bytes) -> None:
    assert Verdict.UNKNOWN in reasons(await run(with_sda(tmp_path, {SMARTCTL: answer}))).values()


def test_recorded_output_of_both_tools_is_judged() -> None:
    assert judged(SOUND) == judged(NVME) == {"Ok": Verdict.PASS}


@pytest.mark.parametrize("text", [*TEXTS, VIRTUAL])
def test_output_that_says_nothing_of_a_disk_is_left_to_others(text: bytes) -> None:
    assert run_recorded(DISK, text, DiskParameters()) is None


@pytest.mark.parametrize(("text", "why"), [(NO_ANSWER, "4"), (FORBIDDEN, "Permission denied")])
def test_recorded_output_without_an_answer_is_unknown_and_says_why(text: bytes, why: str) -> None:
    result = run_recorded(DISK, text, DiskParameters())
    assert result is not None
    assert (result.verdict, result.reason) == (Verdict.UNKNOWN, "NotReadable")
    assert why in result.message


async def test_a_disk_that_answers_no_smart_command_is_unknown_whatever_its_kind(tmp_path: Path) -> None:
    view = with_sda(tmp_path, {SMARTCTL: failed(SMARTCTL, 4, stdout=NO_ANSWER)})
    assert reasons(await run(view)) == {"NotReadable": Verdict.UNKNOWN}
    assert reasons(await run(with_sda(tmp_path, {SMARTCTL: json.dumps(VIRTUAL_4).encode()}))) == {"Ok": Verdict.PASS}


@pytest.mark.parametrize("text", [*mangled(SOUND), *mangled(NVME)])
def test_output_cut_short_is_never_a_failure(text: bytes) -> None:
    result = run_recorded(DISK, text, DiskParameters())
    assert result is None or result.verdict is Verdict.PASS


@pytest.mark.parametrize("sample", [SOUND, NVME])
def test_no_missing_or_strange_value_is_a_failure(sample: bytes) -> None:
    for document in replaced(json.loads(sample)):
        result = run_recorded(DISK, json.dumps(document).encode(), DiskParameters())
        assert result is None or result.verdict is not Verdict.FAIL


def test_values_that_are_none_are_left_out() -> None:
    for value in NO_VALUES:
        health = parse_smartctl(changed(SOUND, media_errors=value, available_spare=value, percentage_used=value))
        assert (health.media_errors, health.spare_percent, health.wear_percent) == (None, None, None)


def test_other_json_is_unreadable() -> None:
    for parse in (parse_smartctl, parse_nvme):
        with pytest.raises(Unreadable):
            parse(b'{"a": 1}')


@settings(max_examples=100, deadline=None)
@given(any_json())
def test_any_json_is_judged_or_left(document: object) -> None:
    for text in (document, {"smartctl": document}, {"smartctl": {"messages": document}, "device": document}):
        result = run_recorded(DISK, json.dumps(text).encode(), DiskParameters())
        assert result is None or result.verdict is not Verdict.FAIL


def test_a_disk_that_says_nothing_is_told_apart() -> None:
    assert not SmartHealth(device="sda").says_something
    assert SmartHealth(device="sda", passed=False).says_something
