"""What the management controller has seen, and what of it is a fault."""

from datetime import datetime
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.checks.bad_input import TEXTS, UNMEASURED, huge, mangled, verdicts_of

from muster_checks.base.execution import run_probe, run_recorded
from muster_checks.base.vocabulary import FaultClass, Verdict
from muster_checks.ipmi import IPMI, IpmiParameters
from muster_checks.ipmi.judge import judge_log, load_rules
from muster_checks.ipmi.parse import parse_log, parse_sensors, read_time
from muster_checks.ipmi.probe import judge_recorded
from muster_checks.testing.recorded import Answer, failed, hung, lay_out, node

SAMPLES = Path(__file__).parent / "samples"
LOG = (SAMPLES / "sel_elist.txt").read_bytes()
SENSORS = (SAMPLES / "sensor.txt").read_bytes()
FREE_LOG = (SAMPLES / "ipmi_sel.txt").read_bytes()
FREE_SENSORS = (SAMPLES / "ipmimonitoring.txt").read_bytes()
NOW = "07/13/2026 12:10:00\n"
TOOL: dict[str, Answer] = {"ipmitool sel elist": LOG, "ipmitool sel time get": NOW, "ipmitool sensor": SENSORS}


async def run(tmp_path: Path, answers: dict[str, Answer], **parameters: object):
    lay_out(tmp_path, {"/dev/ipmi0": ""})
    return await run_probe(IPMI, node(tmp_path, answers), IpmiParameters(**parameters))


async def test_entries_of_the_window_and_sensors_are_judged(tmp_path: Path):
    result = await run(tmp_path, TOOL)
    assert {(f.component, f.reason): (f.verdict, f.fault_class) for f in result.findings} == {
        ("sel/Memory_Mmry_ECC_Sensor", "MemoryUncorrectable"): (Verdict.FAIL, FaultClass.REPLACE),
        ("sel/Power_Supply_PS2_Status", "PowerLost"): (Verdict.WARN, FaultClass.CONTACT),
        ("sensor/CPU2_Temp", "SensorNonRecoverable"): (Verdict.WARN, FaultClass.CONTACT),
        ("sensor/FAN1", "SensorCritical"): (Verdict.WARN, FaultClass.CONTACT),
        ("sel", "Read"): (Verdict.PASS, FaultClass.NONE),
    }


async def test_a_longer_window_sees_older_entries_and_what_was_deasserted_is_over(tmp_path: Path):
    result = await run(tmp_path, TOOL, window_s=30 * 86400.0)
    reasons = {f.component: f.reason for f in result.findings}
    assert reasons["sel/Temperature_SSB_Temp"] == "Critical"
    assert "sel/Fan_FAN3" not in reasons


async def test_the_window_ends_by_the_bmcs_own_clock(tmp_path: Path):
    result = await run(tmp_path, TOOL | {"ipmitool sel time get": "09/01/2026 00:00:00"})
    assert not [f for f in result.findings if f.component.startswith("sel/")]


async def test_a_quiet_board_passes(tmp_path: Path):
    quiet = b"   1 | 07/13/2026 | 12:01:33 | System Event BIOS | Timestamp Clock Sync | Asserted\n"
    fine = SENSORS.splitlines()[0]
    result = await run(tmp_path, {"ipmitool sel elist": quiet, "ipmitool sel time get": NOW, "ipmitool sensor": fine})
    assert result.verdict is Verdict.PASS
    assert {f.component for f in result.findings} == {"sel", "sensors"}


async def test_an_empty_log_is_a_quiet_one(tmp_path: Path):
    result = await run(tmp_path, TOOL | {"ipmitool sel elist": b"SEL has no entries\n"})
    assert ("sel", Verdict.PASS) in {(f.component, f.verdict) for f in result.findings}


async def test_repeated_entries_are_one_finding_with_their_number(tmp_path: Path):
    line = b" a | 07/13/2026 | 12:00:27 | Memory DIMM_A1 | Correctable ECC | Asserted\n"
    result = await run(tmp_path, TOOL | {"ipmitool sel elist": line * 5})
    (finding,) = [f for f in result.findings if f.component.startswith("sel/")]
    assert (finding.verdict, finding.measurements[0].value) == (Verdict.WARN, 5)


def recorded(text: bytes) -> dict[str, tuple[str, Verdict]]:
    result = run_recorded(IPMI, text, IpmiParameters())
    assert result is not None
    return {finding.component: (finding.reason, finding.verdict) for finding in result.findings}


def test_the_event_log_of_freeipmi_is_read_too():
    assert recorded(FREE_LOG) == {
        "sel/Memory_DIMM_B1": ("MemoryUncorrectable", Verdict.FAIL),
        "sel/Processor_CPU1": ("CpuInternalError", Verdict.FAIL),
        "sel/Power_Supply_PS2_Status": ("PowerSupplyFailed", Verdict.WARN),
        "sel/Memory_DIMM_C1": ("MemoryCorrectable", Verdict.WARN),
        "sel/Temperature_CPU1_Temp": ("Critical", Verdict.WARN),
        "sel": ("Read", Verdict.PASS),
    }
    with_state = FREE_LOG.replace(b" | Memory                      |", b" | Memory  | Critical |")
    assert recorded(with_state) == recorded(FREE_LOG)


def test_the_sensors_of_freeipmi_are_read_too():
    assert recorded(FREE_SENSORS) == {
        "sensor/CPU2_Temp": ("SensorCritical", Verdict.WARN),
        "sensor/FAN2": ("SensorNonRecoverable", Verdict.WARN),
    }
    without_state = b"\n".join(
        b"|".join(columns[:3] + columns[4:]) for columns in (line.split(b"|") for line in FREE_SENSORS.splitlines())
    )
    assert recorded(without_state) == recorded(FREE_SENSORS)


@pytest.mark.parametrize("text", [*mangled(FREE_LOG), *mangled(FREE_SENSORS)])
def test_output_of_freeipmi_cut_short_is_read_as_far_as_it_goes(text: bytes):
    result = run_recorded(IPMI, text, IpmiParameters())
    assert result is None or result.verdict is not Verdict.UNKNOWN


async def test_without_a_controller_it_is_skipped(tmp_path: Path):
    assert (await run_probe(IPMI, node(tmp_path), IpmiParameters())).reason == "NoBmc"


@pytest.mark.parametrize(
    "answer",
    [
        failed("ipmitool", 1, b"Could not open device"),
        failed("ipmitool", 127),
        failed("ipmitool", -9),
        hung("ipmitool"),
    ],
)
async def test_a_controller_that_does_not_answer_is_unknown(tmp_path: Path, answer: Answer):
    result = await run(tmp_path, dict.fromkeys(TOOL, answer))
    assert (result.verdict, result.reason) == (Verdict.UNKNOWN, "BmcNotAnswering")


@pytest.mark.parametrize("sensors", [failed("ipmitool", 1, b"Unable to open"), ""])
async def test_the_message_has_the_trouble_of_log_and_sensors(tmp_path: Path, sensors: Answer):
    """Also if the sensors' command succeeds and prints nothing."""
    answers = dict.fromkeys(TOOL, failed("ipmitool", 1, b"ENODEV")) | {"ipmitool sensor": sensors}
    result = await run(tmp_path, answers)
    assert result.reason == "BmcNotAnswering"
    log, _, rest = result.message.partition("; ")
    assert "ENODEV" in log
    assert "ipmitool" in rest


async def test_one_half_that_does_not_answer_leaves_the_other_judged(tmp_path: Path):
    result = await run(tmp_path, TOOL | {"ipmitool sensor": hung("ipmitool")})
    assert result.verdict is Verdict.FAIL
    assert ("sensors", Verdict.UNKNOWN) in {(f.component, f.verdict) for f in result.findings}
    result = await run(tmp_path, TOOL | {"ipmitool sel elist": failed("ipmitool", 1)})
    assert ("sel", Verdict.UNKNOWN) in {(f.component, f.verdict) for f in result.findings}
    assert result.verdict is Verdict.WARN


async def test_without_the_tool_its_package_is_named(tmp_path: Path):
    result = await run(tmp_path, {})
    assert (result.reason, "install ipmitool" in result.message) == ("ToolMissing", True)


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        (b"07/13/2026 12:00:27", datetime(2026, 7, 13, 12, 0, 27)),  # noqa: DTZ001 - as the BMC keeps it
        (b"07/13/2026 12:00:27 UTC", datetime(2026, 7, 13, 12, 0, 27)),  # noqa: DTZ001 - as above
        (b"07/13/2026 01:00:27 PM UTC", datetime(2026, 7, 13, 13, 0, 27)),  # noqa: DTZ001 - as above
        (b"13/07/2026 12:00:27", None),
        (b"yesterday", None),
    ],
)
def test_times_are_read_as_the_tool_prints_them(text: bytes, moment: datetime | None):
    assert read_time(text) == moment


def test_recorded_output_is_told_apart_by_its_columns():
    assert judge_recorded(b"[ 1.0] a | b", IpmiParameters()) is None
    assert {f.component for f in judge_recorded(SENSORS, IpmiParameters()) or []} == {"sensor/CPU2_Temp", "sensor/FAN1"}
    result = run_recorded(IPMI, LOG, IpmiParameters())
    assert result is not None
    assert result.verdict is Verdict.FAIL


def test_a_long_text_is_not_the_controllers():
    assert judge_recorded(b"[ 1.0] usb 1-1: new device\n" * 200_000, IpmiParameters()) is None


def test_every_rule_can_be_met():
    for rule in load_rules():
        line = f" a | 07/13/2026 | 12:00:27 | {rule.sensor} x | {rule.event} | Asserted\n".encode()
        found = judge_log(parse_log(line), datetime(2026, 7, 13, 13), 7200.0)  # noqa: DTZ001 - as above
        assert [f.reason for f in found] == [rule.reason, "Read"]


@pytest.mark.parametrize("text", TEXTS)
def test_text_of_another_kind_never_fails(text: bytes):
    try:
        findings = judge_recorded(text, IpmiParameters())
    except UNMEASURED:
        return
    assert findings is None


def test_a_hundred_megabytes_never_fail():
    test_text_of_another_kind_never_fails(huge(LOG))


def test_a_sample_cut_short_says_no_more_than_the_whole():
    for text in mangled(LOG):
        findings = judge_recorded(text, IpmiParameters(window_s=30 * 86400.0)) or []
        assert {f.component for f in findings if f.verdict is Verdict.FAIL} <= {"sel/Memory_Mmry_ECC_Sensor"}


@settings(deadline=None, max_examples=200)
@given(st.text(alphabet="0a|/: \n1239PMnrcrok.", max_size=200))
def test_any_text_is_read(text: str):
    assert parse_log(text.encode()) is not None
    assert verdicts_of(judge_recorded(text.encode(), IpmiParameters()) or []) <= {Verdict.PASS, Verdict.WARN}
    assert parse_sensors(text.encode()) is not None
