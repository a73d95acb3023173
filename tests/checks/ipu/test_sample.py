"""Output given to ``muster check ipu --sample``: what it is, is told by its content."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.checks.bad_input import TEXTS, any_json, huge, mangled, replaced
from tests.checks.graphcore.sample import sample, samples

from muster_checks.base.execution import run_recorded
from muster_checks.base.vocabulary import Verdict
from muster_checks.ipu import IPU, IpuParameters

EXPECTED = {
    "gc_info_device_c2.txt": Verdict.PASS,
    "gc_info_device_c600.txt": Verdict.PASS,
    "gc_info_device_m2000.txt": Verdict.PASS,  # thousands of corrected host link errors
    "gc_info_list.txt": Verdict.PASS,
    "gc_inventory_c2.txt": Verdict.PASS,
    "gc_inventory_c2_1.0.45.txt": Verdict.PASS,  # parity not yet initialised
    "gc_monitor.txt": Verdict.PASS,
    "gc_monitor_no_card_info.txt": Verdict.PASS,
    "gcipuinfo_health_check.json": Verdict.FAIL,
    "poplar_error_softerr.txt": Verdict.WARN,
}
RECORDED = EXPECTED | {"gcipuinfo_health_check_ok.json": Verdict.PASS}
OTHERS = [path.name for path in samples() if path.name not in EXPECTED]
PARAMETERS = IpuParameters()


def _verdict(text: bytes) -> Verdict | None:
    result = run_recorded(IPU, text, PARAMETERS)
    if result is None:
        return None
    assert result.reason != "ProbeFailed", result.message
    return result.verdict


@pytest.mark.parametrize(("name", "verdict"), EXPECTED.items())
def test_each_sample_gets_its_verdict(name, verdict):
    assert _verdict(sample(name)) is verdict


@pytest.mark.parametrize(("name", "verdict"), RECORDED.items())
def test_each_recorded_sample_gets_its_verdict(name, verdict, shared_data):
    assert _verdict(shared_data.read(f"ipu/{name}")) is verdict


def test_an_empty_answer_of_the_health_check_passes():
    assert _verdict(b"{}\n") is Verdict.PASS


@pytest.mark.parametrize("name", OTHERS)
def test_what_other_tools_print_is_not_taken_for_an_ipus(name):
    assert _verdict(sample(name)) is None


def test_the_health_sample_names_both_ipus():
    result = run_recorded(IPU, sample("gcipuinfo_health_check.json"), PARAMETERS)
    assert result is not None
    assert {finding.component for finding in result.findings} == {"ipu/10.2.0.21/2", "ipu/10.2.0.21/1"}


def test_the_softerr_sample_names_register_and_ipu():
    result = run_recorded(IPU, sample("poplar_error_softerr.txt"), PARAMETERS)
    assert result is not None
    assert [(finding.component, finding.reason) for finding in result.findings] == [("ipu/3", "Ciuerrvr:IPUSOFTERR")]


def test_a_poplar_error_without_an_ipu_names_none():
    result = run_recorded(IPU, b"recoverable_runtime_error: [Recovery action: FULL_RESET] host link\n", PARAMETERS)
    assert result is not None
    assert [finding.component for finding in result.findings] == ["ipu/unnamed"]


def test_an_error_state_in_a_sample_fails():
    assert _verdict(sample("gc_info_device_c600.txt").replace(b"no errors", b"IPUSOFTERR")) is Verdict.FAIL


def test_a_sound_sample_never_fails_however_it_is_mangled():
    for name, verdict in EXPECTED.items():
        for text in mangled(sample(name)):
            assert _verdict(text) is not Verdict.FAIL or verdict is Verdict.FAIL, text


def test_each_attribute_without_its_value_is_no_failure():
    whole = sample("gc_info_device_c600.txt")
    for line in whole.splitlines(keepends=True)[1:]:
        key = line.split(b":")[0]
        for value in (b"N/A", b"[Unknown Error]", b"[Not Supported]", b"", b"nan", b"-1", b"True", b"1e308", b"{}"):
            assert _verdict(whole.replace(line, key + b": " + value + b"\n")) is not Verdict.FAIL


def test_a_health_report_without_its_values_is_no_failure_for_want_of_them():
    report = {"hosts": {"h": [{"error": "", "id": "2", "partition": "p1", "board ipu index": "1"}]}}
    for document in replaced(report):
        assert _verdict(json.dumps(document).encode()) is not Verdict.FAIL


@pytest.mark.parametrize("text", TEXTS)
def test_what_tools_print_on_bad_days_is_never_a_failure(text):
    assert _verdict(text) in (None, Verdict.UNKNOWN, Verdict.PASS)


@pytest.mark.parametrize("line", [b"\n", b" \n", b"|\n", b"Device:\n", b"-+- Id: [\n", b"{\n"])
def test_a_megabyte_of_lines_is_read_in_no_time(line):
    assert _verdict(line * ((1 << 20) // len(line))) is not Verdict.FAIL


def test_a_hundred_megabytes_are_never_a_failure():
    for beginning in (b"Device Info:\n id: 0\n ipu error state: ", b'{"hosts": {', b"+---+\n|  gc-monitor  |\n"):
        assert _verdict(huge(beginning)) is not Verdict.FAIL


@settings(max_examples=100, deadline=None)
@given(
    text=st.binary(max_size=300),
    beginning=st.sampled_from([b"", b"Device:\n id: 0\n link width: ", b'{"hosts": {"h":']),
)
def test_bytes_at_random_are_never_a_failure(text, beginning):
    assert _verdict(beginning + text) is not Verdict.FAIL


@settings(max_examples=100, deadline=None)
@given(document=any_json())
def test_json_at_random_is_never_a_failure(document):
    assert _verdict(json.dumps({"hosts": document}).encode()) is not Verdict.FAIL
