"""Output given to ``muster check ipulink --sample``: what it is, is told by its content."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.checks.bad_input import TEXTS, any_json, huge, mangled, replaced
from tests.checks.graphcore.sample import sample, samples

from muster_checks.base.execution import run_recorded
from muster_checks.base.vocabulary import Verdict
from muster_checks.ipulink import IPULINK, IpuLinkParameters

EXPECTED = {
    "gc_links_ok.json": Verdict.PASS,
    "gc_links_pod.json": Verdict.PASS,
    "gc_links_failed_1.0.x.json": Verdict.FAIL,
    "gc_links_failed_latest.json": Verdict.FAIL,
    "gc_iputraffictest.json": Verdict.PASS,
    "gc_hostsynclatencytest.json": Verdict.PASS,
    "gc_hostsynclatencytest.txt": Verdict.PASS,
    "vipu_list_partitions.txt": Verdict.PASS,
}
OTHERS = [path.name for path in samples() if path.name not in EXPECTED]
PARAMETERS = IpuLinkParameters()


def _verdict(text: bytes) -> Verdict | None:
    result = run_recorded(IPULINK, text, PARAMETERS)
    if result is None:
        return None
    assert result.reason != "ProbeFailed", result.message
    return result.verdict


@pytest.mark.parametrize(("name", "verdict"), EXPECTED.items())
def test_each_sample_gets_its_verdict(name, verdict):
    assert _verdict(sample(name)) is verdict


@pytest.mark.parametrize(("name", "verdict"), EXPECTED.items())
def test_each_recorded_sample_gets_its_verdict(name, verdict, shared_data):
    assert _verdict(shared_data.read(f"ipu/{name}")) is verdict


@pytest.mark.parametrize("name", OTHERS)
def test_what_other_tools_print_is_not_taken_for_links(name):
    assert _verdict(sample(name)) is None


@pytest.mark.parametrize(
    ("name", "channel"), [("gc_links_failed_1.0.x.json", "NLC_E_1B"), ("gc_links_failed_latest.json", "NLC_E_2B")]
)
def test_the_failed_channel_is_named_with_both_ends(name, channel):
    result = run_recorded(IPULINK, sample(name), PARAMETERS)
    assert result is not None
    (finding,) = result.findings
    assert (finding.component, finding.reason) == ("ipu/13", f"IpuLinkFailed:{channel}")
    assert f"{channel} of ipu/13 to {channel} of ipu/12" in finding.message


def test_a_failed_sync_and_a_partition_that_is_not_active():
    assert _verdict(sample("gc_hostsynclatencytest.txt").replace(b"Pass", b"Fail")) is Verdict.FAIL
    assert _verdict(sample("vipu_list_partitions.txt").replace(b"ACTIVE", b"PENDING")) is Verdict.WARN


def test_a_sound_sample_never_fails_however_it_is_mangled():
    for name, verdict in EXPECTED.items():
        for text in mangled(sample(name)):
            assert _verdict(text) is not Verdict.FAIL or verdict is Verdict.FAIL, text


@pytest.mark.parametrize("name", [name for name in EXPECTED if name.endswith(".json") and "failed" not in name])
def test_a_document_without_its_values_is_no_failure(name):
    for document in replaced(json.loads(sample(name))):
        text = json.dumps(document).encode()
        assert _verdict(text) is not Verdict.FAIL, text


@pytest.mark.parametrize("text", TEXTS)
def test_what_tools_print_on_bad_days_is_never_a_failure(text):
    assert _verdict(text) in (None, Verdict.UNKNOWN)


@pytest.mark.parametrize("line", [b"\n", b" \n", b"| Partition |\n", b"Partition  Partition", b"{\n", b'"device0":\n'])
def test_a_megabyte_of_lines_is_read_in_no_time(line):
    assert _verdict(line * ((1 << 20) // len(line))) is not Verdict.FAIL


def test_a_hundred_megabytes_are_never_a_failure():
    for beginning in (b'{"overall_result": "passed", "a": "', b"o Using device Id - 0\n", b" Partition | State\n"):
        assert _verdict(huge(beginning)) is not Verdict.FAIL


def test_ten_thousand_channels_are_judged_in_no_time_and_a_hundred_thousand_refused():
    channel = '{"from": "A", "to": "B", "status": "passed", "gen": "4", "lanes": "8"}'
    for count, verdict in ((10_000, Verdict.PASS), (100_000, Verdict.UNKNOWN)):
        text = f'{{"from_pcie_id": "1", "to_pcie_id": "2", "channels": [{",".join([channel] * count)}]}}'
        assert _verdict(text.encode()) is verdict


@settings(max_examples=100, deadline=None)
@given(
    text=st.binary(max_size=300), beginning=st.sampled_from([b"", b'{"overall_result":', b"o Using device Id - 0\n"])
)
def test_bytes_at_random_are_never_a_failure(text, beginning):
    assert _verdict(beginning + text) is not Verdict.FAIL


@settings(max_examples=100, deadline=None)
@given(document=any_json())
def test_json_at_random_is_never_a_failure(document):
    for key in ("overall_result", "from_pcie_id", "device0", "time_to_sync_us"):
        text = json.dumps({key: document, "channels": [document], "result": document, "gbps": document})
        assert _verdict(text.encode()) is not Verdict.FAIL
