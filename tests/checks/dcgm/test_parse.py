"""What `dcgmi diag -j` and `dcgmi discovery -l` print, from the oldest layout to DCGM 4."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.checks.bad_input import TEXTS, UNMEASURED, any_json, huge, mangled, replaced, verdicts_of

from muster_checks.base.bounded_read import Unreadable
from muster_checks.base.vocabulary import Verdict
from muster_checks.dcgm.discovery import parse as parse_discovery
from muster_checks.dcgm.judge import judge
from muster_checks.dcgm.parse import DcgmEntity, DcgmStatus, DcgmTestResult, DiagnosisError, is_diagnosis, parse

SAMPLES = Path(__file__).parent / "samples"
NAMES = sorted(path.name for path in SAMPLES.glob("*.json"))


def sample(name: str) -> bytes:
    return (SAMPLES / name).read_bytes()


def outcome(result: object, root: str = "DCGM Diagnostic", **test: object) -> DcgmTestResult:
    tests = [{"name": "pcie", "results": [result], **test}]
    return parse(json.dumps({root: {"test_categories": [{"tests": tests}]}}).encode()).outcomes[0]


@pytest.mark.parametrize(
    ("result", "entities"),
    [
        ({"entity_group": "GPU", "entity_group_id": 1, "entity_id": 5}, (DcgmEntity("GPU", 5),)),
        ({"entity_group": "CPU", "entity_id": 0}, (DcgmEntity("CPU", 0),)),
        ({"entity_group": "GPU", "entity_id": "N/A"}, ()),
        ({"gpu_id": "5"}, (DcgmEntity("GPU", 5),)),
        ({"gpu_id": 5}, (DcgmEntity("GPU", 5),)),
        ({"gpu_id": 4294967295}, ()),
        ({"gpu_ids": "0,1,12"}, (DcgmEntity("GPU", 0), DcgmEntity("GPU", 1), DcgmEntity("GPU", 12))),
        ({"gpu_ids": ""}, ()),
        ({}, ()),
    ],
)
def test_a_result_is_of_the_entities_it_names(result: dict[str, object], entities: tuple[DcgmEntity, ...]) -> None:
    assert outcome({"status": "Pass", **result}).entities == entities


@pytest.mark.parametrize(
    ("said", "status"),
    [
        ("Pass", DcgmStatus.PASS),
        ("PASS", DcgmStatus.PASS),
        ("Fail", DcgmStatus.FAIL),
        ("Warn", DcgmStatus.WARN),
        ("Skip", DcgmStatus.SKIP),
        ("Skipped", DcgmStatus.SKIP),
        ("Not Run", DcgmStatus.SKIP),
        ("", DcgmStatus.UNREADABLE),
        ("perhaps", DcgmStatus.UNREADABLE),
        (None, DcgmStatus.UNREADABLE),
        (7, DcgmStatus.UNREADABLE),
    ],
)
def test_a_status_is_read_in_any_case(said: object, status: DcgmStatus) -> None:
    assert outcome({"status": said}).status is status


@pytest.mark.parametrize(
    ("result", "errors"),
    [
        ({"warnings": [{"warning": " text ", "error_id": 29}]}, (DiagnosisError(29, "text"),)),
        ({"warnings": [{"warnings": "text", "error_id": 29}]}, (DiagnosisError(29, "text"),)),  # DCGM 3, level 1
        ({"warnings": [{"error_id": 29}, {"warning": 5}]}, (DiagnosisError(29, ""), DiagnosisError(None, ""))),
        ({"warnings": ["one", "two", ""]}, (DiagnosisError(None, "one"), DiagnosisError(None, "two"))),
        ({"warnings": "text", "error_id": 29}, (DiagnosisError(29, "text"),)),  # DCGM 2
        ({"warning": "text"}, (DiagnosisError(None, "text"),)),
        ({"warnings": [{"warning": "text", "error_id": 0}]}, (DiagnosisError(None, "text"),)),
        ({"warnings": [None, 5]}, ()),
    ],
)
def test_errors_are_read_in_every_form(result: dict[str, object], errors: tuple[DiagnosisError, ...]) -> None:
    assert outcome({"status": "Fail", **result}).errors == errors


@pytest.mark.parametrize(
    ("text", "gpu"),
    [
        ("Detected 3 volatile double-bit ECC error(s) in GPU 5.", 5),
        ("Bandwidth of GPU 12 in direction d2h", 12),
        ("GPU 1 and GPU 2 cannot reach each other", None),
        ("GPU 1's NvLink: GPU 1", 1),
        ("no GPU at all", None),
    ],
)
def test_the_one_gpu_that_an_error_names_is_known(text: str, gpu: int | None) -> None:
    assert DiagnosisError(None, text).gpu == gpu


def test_information_is_read_as_text_or_list() -> None:
    assert outcome({"status": "Pass", "info": "a, b"}).info == ("a, b",)
    assert outcome({"status": "Pass", "info": ["a", 5, "b"]}).info == ("a", "b")


def test_what_belongs_to_the_whole_test_is_a_result_of_its_own() -> None:
    summary = {"status": "Fail", "warnings": [{"warning": "nothing to see", "error_id": 44}]}
    result = {"entity_group": "GPU", "entity_id": 0, "status": "Fail"}
    text = {
        "DCGM Diagnostic": {
            "test_categories": [{"tests": [{"name": "pcie", "results": [result], "test_summary": summary}]}]
        }
    }
    outcomes = parse(json.dumps(text).encode()).outcomes
    assert [one.entities for one in outcomes] == [(DcgmEntity("GPU", 0),), ()]
    assert outcomes[1].errors == (DiagnosisError(44, "nothing to see"),)


def test_a_summary_that_repeats_its_results_says_nothing_new() -> None:
    assert len([one for one in parse(sample("dcgm4-sixth-fails.json")).outcomes if not one.entities]) == 0


def test_an_error_of_the_run_is_kept() -> None:
    text = b'{"DCGM Diagnostic": {"runtime_error": "Error: no GPU", "version": "4.2.3"}}'
    assert parse(text).runtime_error == "Error: no GPU"


@pytest.mark.parametrize("text", [*TEXTS, b'{"DCGM Diagnostic": []}', b'{"DCGM Diagnostic": {}}', b'{"other": {}}'])
def test_what_is_no_diagnosis_is_unreadable(text: bytes) -> None:
    with pytest.raises(Unreadable):
        parse(text)


def test_a_line_before_the_document_is_passed_over() -> None:
    assert parse(b"Warning: something\n" + sample("diag_pass.json")) == parse(sample("diag_pass.json"))


@pytest.mark.parametrize("name", NAMES)
def test_a_document_cut_short_is_unreadable_or_read(name: str) -> None:
    for text in mangled(sample(name)):
        try:
            findings = judge(parse(text), {})
        except UNMEASURED:
            continue
        assert findings


@pytest.mark.parametrize("name", ["diag_pass.json"])
def test_other_values_in_a_sound_document_never_fail(name: str) -> None:
    for document in replaced(json.loads(sample(name))):
        try:
            judged = judge(parse(json.dumps(document).encode()), {})
        except UNMEASURED:
            continue
        assert Verdict.FAIL not in verdicts_of(judged)


@pytest.mark.parametrize("name", ["dcgm4-gb10.json", "dcgm3-sixth-fails.json"])
def test_other_values_in_a_document_break_nothing(name: str) -> None:
    for document in replaced(json.loads(sample(name))):
        try:
            verdicts_of(judge(parse(json.dumps(document).encode()), {}))
        except UNMEASURED:
            continue


def test_a_document_without_end_is_refused() -> None:
    with pytest.raises(Unreadable):
        parse(huge(b'{"DCGM Diagnostic": "', b"x"))


@settings(max_examples=100, deadline=None)
@given(
    any_json().map(lambda value: json.dumps({"DCGM Diagnostic": {"test_categories": [{"tests": [value]}]}}).encode())
    | any_json().map(lambda value: json.dumps({"DCGM Diagnostic": value}).encode())
    | st.binary(max_size=200)
)
def test_no_text_breaks_the_reader(text: bytes) -> None:
    try:
        judge(parse(text), {})
    except UNMEASURED:
        return


def test_a_diagnosis_is_told_from_other_text() -> None:
    assert all(is_diagnosis(sample(name)) for name in NAMES)
    assert not is_diagnosis(sample("discovery.txt"))


def test_discovery_has_the_address_of_each_gpu() -> None:
    found = parse_discovery(sample("discovery.txt").decode())
    assert found[5] == "0000:bd:00.0"
    assert list(found) == list(range(8))


@pytest.mark.parametrize("text", TEXTS)
def test_what_is_no_table_has_no_addresses(text: bytes) -> None:
    assert parse_discovery(text.decode("utf-8", "replace")) == {}


@settings(max_examples=100, deadline=None)
@given(st.text(alphabet="|+- 0123456789:.PCIBusDfa\n", max_size=200))
def test_no_table_breaks_the_reader(text: str) -> None:
    parse_discovery(text)
