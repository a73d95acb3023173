"""What a diagnosis says of each GPU of a node."""

import re
from pathlib import Path

import pytest
from tests.checks.bad_input import TEXTS
from tests.shared_data import SharedData
from tests.wording.facts import missing_facts

from muster_checks.base.execution import CannotTell, run_recorded
from muster_checks.base.vocabulary import FaultClass, Finding, Measurement, Result, Verdict
from muster_checks.dcgm import DCGM, DcgmParameters
from muster_checks.dcgm.errors import ErrorKind, find_meaning, load_meanings
from muster_checks.dcgm.judge import judge
from muster_checks.dcgm.parse import DcgmEntity, DcgmStatus, DcgmTestResult, Diagnosis, DiagnosisError, parse

SAMPLES = Path(__file__).parent / "samples"
GPU5 = (DcgmEntity("GPU", 5),)


def recorded(name: str) -> Result:
    return judged_text((SAMPLES / name).read_bytes())


def judged_text(text: bytes) -> Result:
    result = run_recorded(DCGM, text, DcgmParameters())
    assert result is not None
    return result


def judged(*outcomes: DcgmTestResult) -> list[Finding]:
    return judge(Diagnosis(outcomes), {5: "0000:bd:00.0"})


def failed(
    *errors: DiagnosisError,
    test: str = "pcie",
    status: DcgmStatus = DcgmStatus.FAIL,
    entities: tuple[DcgmEntity, ...] = GPU5,
) -> Finding:
    (finding,) = judged(DcgmTestResult(test, status, entities, errors))
    return finding


def test_a_node_that_passed_everything_passes() -> None:
    result = recorded("diag_pass.json")
    assert (result.verdict, len(result.findings)) == (Verdict.PASS, 1)
    assert result.findings[0].measurements == (Measurement("tests_passed", 9.0, ""),)


def test_a_failed_test_without_a_code_fails_and_asks_for_a_person() -> None:
    result = recorded("diag_fail.json")
    assert [(one.component, one.verdict, one.reason, one.fault_class) for one in result.findings] == [
        ("host", Verdict.FAIL, "DcgmPersistenceMode", FaultClass.CONTACT),
        ("gpu/1", Verdict.WARN, "DcgmGraphicsProcesses", FaultClass.NONE),
    ]
    assert result.message.startswith("Persistence Mode ")


def test_the_recorded_diagnoses_are_judged(shared_data: SharedData) -> None:
    result = judged_text(shared_data.read("dcgm/diag_pass.json"))
    assert [(one.verdict, one.measurements) for one in result.findings] == [
        (Verdict.PASS, (Measurement("tests_passed", 9.0, ""),))
    ]
    result = judged_text(shared_data.read("dcgm/diag_fail.json"))
    assert [(one.component, one.verdict, one.reason, one.fault_class) for one in result.findings] == [
        ("host", Verdict.FAIL, "DcgmPersistenceMode", FaultClass.CONTACT),
        ("host", Verdict.WARN, "DcgmEnvironmentVariables", FaultClass.NONE),
    ]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("dcgm4-sixth-fails.json", "DcgmMemory"),
        ("dcgm3-sixth-fails.json", "DcgmGpuMemory"),
        ("nvvs-sixth-fails.json", "DcgmMemory"),
    ],
)
def test_of_eight_gpus_the_sixth_is_named(name: str, reason: str) -> None:
    result = recorded(name)
    blamed = {finding.component for finding in result.findings if finding.verdict is Verdict.FAIL}
    assert blamed == {"gpu/5"}
    assert reason in {finding.reason for finding in result.findings}


def test_the_other_seven_pass() -> None:
    passed = [one.component for one in recorded("dcgm4-sixth-fails.json").findings if one.verdict is Verdict.PASS]
    assert passed == [f"gpu/{number}" for number in (0, 1, 2, 3, 4, 6, 7)]


def test_a_gpu_is_named_by_its_address_where_it_is_known() -> None:
    diagnosis = parse((SAMPLES / "dcgm4-sixth-fails.json").read_bytes())
    assert judge(diagnosis, {5: "0000:bd:00.0"})[0].component == "gpu/0000:bd:00.0"


def test_a_check_of_the_installation_has_its_own_reason() -> None:
    (finding,) = recorded("dcgm4-gb10.json").findings
    assert (finding.component, finding.reason) == ("gpu/0", "DcgmPersistenceMode")
    assert finding.verdict is Verdict.WARN  # a setting: no sound GPU is taken away for it
    assert "(DCGM_FR_PERSISTENCE_MODE)" in finding.message


def test_an_error_of_the_installation_without_a_name_goes_by_its_test() -> None:
    assert failed(DiagnosisError(22, "cannot open libcuda"), test="software").reason == "DcgmSoftware"


@pytest.mark.parametrize(
    ("code", "verdict", "fault_class"),
    [
        (4, Verdict.FAIL, FaultClass.RESET),
        (14, Verdict.FAIL, FaultClass.REBOOT),
        (120, Verdict.FAIL, FaultClass.REBOOT),
        (58, Verdict.FAIL, FaultClass.CONTACT),
        (63, Verdict.WARN, FaultClass.NONE),
        (101, Verdict.WARN, FaultClass.NONE),
        (56, Verdict.UNKNOWN, FaultClass.NONE),
        (26, Verdict.UNKNOWN, FaultClass.NONE),
        (4711, Verdict.FAIL, FaultClass.CONTACT),
        (None, Verdict.FAIL, FaultClass.CONTACT),
    ],
)
def test_what_a_failure_asks_for_is_its_codes_action(
    code: int | None, verdict: Verdict, fault_class: FaultClass
) -> None:
    finding = failed(DiagnosisError(code, "text"))
    assert (finding.verdict, finding.fault_class) == (verdict, fault_class)


def test_a_failure_that_measured_nothing_says_why() -> None:
    finding = failed(DiagnosisError(56, "Cannot allocate memory"))
    why = find_meaning(56).why
    assert why
    assert missing_facts(finding.message, "pcie", "Cannot allocate memory", "DCGM_FR_MEMORY_ALLOC", why) == []


def test_of_several_errors_the_worst_decides() -> None:
    finding = failed(DiagnosisError(56, "busy"), DiagnosisError(4, "broken"), DiagnosisError(58, "mismatch"))
    assert (finding.verdict, finding.fault_class) == (Verdict.FAIL, FaultClass.CONTACT)
    assert re.search(r"\bpcie\b.*\bbroken\b.*DCGM_FR_VOLATILE_DBE_DETECTED.*\bmismatch\b", finding.message)


def test_a_warning_warns_whatever_its_code() -> None:
    assert failed(DiagnosisError(58, "text"), status=DcgmStatus.WARN).verdict is Verdict.WARN
    assert failed(status=DcgmStatus.WARN).fault_class is FaultClass.NONE


def test_a_failure_of_many_gpus_is_that_of_those_it_names() -> None:
    entities = tuple(DcgmEntity("GPU", number) for number in range(8))
    named = judged(
        DcgmTestResult(
            "Memory",
            DcgmStatus.FAIL,
            entities,
            (DiagnosisError(None, "GPU 5 mismatch"), DiagnosisError(None, "GPU 6 too")),
        )
    )
    assert [one.component for one in named] == ["gpu/0000:bd:00.0", "gpu/6"]
    assert len(judged(DcgmTestResult("Memory", DcgmStatus.FAIL, entities, (DiagnosisError(None, "mismatch"),)))) == 8
    assert len(judged(DcgmTestResult("Memory", DcgmStatus.FAIL, entities))) == 8


def test_a_gpu_that_an_error_of_its_result_does_not_name_is_still_blamed() -> None:
    assert failed(DiagnosisError(None, "GPU 7 did not answer")).component == "gpu/0000:bd:00.0"


def test_what_is_of_no_gpu_is_of_the_host() -> None:
    assert failed(entities=()).component == "host"
    assert failed(entities=(DcgmEntity("CPU", 0),)).component == "host"


def test_a_result_without_a_status_is_unknown() -> None:
    finding = failed(status=DcgmStatus.UNREADABLE)
    assert (finding.verdict, finding.component) == (Verdict.UNKNOWN, "gpu/0000:bd:00.0")


def test_a_skipped_test_is_told_so_that_what_it_found_before_stays_open() -> None:
    findings = judged(DcgmTestResult("memtest", DcgmStatus.SKIP, GPU5), DcgmTestResult("pcie", DcgmStatus.PASS, GPU5))
    assert [(one.verdict, one.reason) for one in findings] == [
        (Verdict.PASS, "Passed"),
        (Verdict.SKIP, "DcgmMemtest"),
    ]


def test_a_test_that_was_skipped_for_nobody_in_particular_was_skipped_for_all_that_are_known() -> None:
    findings = judged(DcgmTestResult("memtest", DcgmStatus.SKIP, ()), DcgmTestResult("pcie", DcgmStatus.PASS, GPU5))
    skipped = {one.component for one in findings if one.verdict is Verdict.SKIP}
    assert skipped == {"host", *(one.component for one in findings if one.verdict is Verdict.PASS)}


def test_a_run_in_which_all_was_skipped_measured_nothing() -> None:
    with pytest.raises(CannotTell, match="memtest") as caught:
        judged(DcgmTestResult("memtest", DcgmStatus.SKIP, GPU5))
    assert caught.value.reason == "AllSkipped"


def test_a_run_that_broke_off_measured_nothing() -> None:
    with pytest.raises(CannotTell, match="Error: no GPU"):
        judge(Diagnosis((), "Error: no GPU"), {})


def test_a_gpu_with_something_against_it_has_no_pass() -> None:
    findings = judged(DcgmTestResult("pcie", DcgmStatus.PASS, GPU5), DcgmTestResult("memory", DcgmStatus.WARN, GPU5))
    assert [one.verdict for one in findings] == [Verdict.WARN]


def test_reasons_are_words_of_a_condition() -> None:
    assert failed(test="Page Retirement/Row Remap").reason == "DcgmPageRetirementRowRemap"
    assert failed(test="targeted_power").reason == "DcgmTargetedPower"


def test_every_code_of_dcgm_has_its_row() -> None:
    assert sorted(load_meanings()) == list(range(1, 130))
    assert find_meaning(29).name == "DCGM_FR_PERSISTENCE_MODE"


def test_every_code_that_measures_nothing_says_why() -> None:
    assert all(bool(meaning.why) == (meaning.kind is ErrorKind.UNMEASURED) for meaning in load_meanings().values())


def test_what_asks_for_nothing_does_not_fail() -> None:
    assert {m.kind for m in load_meanings().values() if m.fault_class is FaultClass.NONE} <= {
        ErrorKind.NOTICE,
        ErrorKind.UNMEASURED,
    }


@pytest.mark.parametrize("text", TEXTS)
def test_text_of_another_kind_is_not_ours(text: bytes) -> None:
    assert run_recorded(DCGM, text, DcgmParameters()) is None
