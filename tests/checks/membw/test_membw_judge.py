"""What the figures of NUMA nodes are worth."""

import msgspec
import pytest

from muster_checks.base.vocabulary import FaultClass, Finding, Verdict
from muster_checks.membw import MembwParameters
from muster_checks.membw.judge import NumaSample, judge
from muster_checks.membw.memory import PatternMismatch
from muster_checks.membw.worker import MemoryReport

LIMITS = MembwParameters()
GIB = 1 << 30
SOUND = MemoryReport(
    threads=32, gb_per_s=200.0, cpu_share=1.0, local_share=1.0, patterns=5, wrong_chunks=0, mismatches=()
)


def sample(number: int = 0, memory: int = 256 * GIB, **values: object) -> NumaSample:
    return NumaSample(number, memory, report=msgspec.structs.replace(SOUND, **values))


def judged(*samples: NumaSample, limits: MembwParameters = LIMITS) -> dict[tuple[str, str], Finding]:
    return {finding.key: finding for finding in judge(samples, limits)}


def bad(findings: dict[tuple[str, str], Finding]) -> dict[tuple[str, str], Verdict]:
    return {key: finding.verdict for key, finding in findings.items() if finding.verdict is not Verdict.PASS}


def test_a_sound_node_passes_twice_with_its_bandwidth():
    findings = judged(sample())
    assert bad(findings) == {}
    assert set(findings) == {("numa/0", "PatternsKept"), ("numa/0", "Bandwidth")}
    (bandwidth,) = findings["numa/0", "Bandwidth"].measurements
    assert (bandwidth.name, bandwidth.value, bandwidth.unit, bandwidth.threshold) == ("bandwidth", 200.0, "GB/s", None)


def test_a_word_that_came_back_wrong_asks_for_another_board():
    words = (PatternMismatch("0xAA", 4096, 0xAA, 0xAB, 0x1F000), PatternMismatch("0x55", 8192, 0x55, 0x15))
    findings = judged(sample(wrong_chunks=2, mismatches=words))
    assert bad(findings) == {("numa/0", "MemoryMismatch"): Verdict.FAIL}
    finding = findings["numa/0", "MemoryMismatch"]
    assert finding.fault_class is FaultClass.REPLACE
    assert "physical 0x1f000, bits 0x41 differ (pattern 0xAA)" in finding.message


def test_without_a_physical_address_the_place_within_the_block_is_told():
    words = (PatternMismatch("0xAA", 4096, 0xAA, 0xAB),)
    assert "offset 0x1000" in judged(sample(wrong_chunks=1, mismatches=words))["numa/0", "MemoryMismatch"].message


def test_a_chunk_that_was_right_when_it_was_looked_at_again_was_wrong_all_the_same():
    assert bad(judged(sample(wrong_chunks=1))) == {("numa/0", "MemoryMismatch"): Verdict.FAIL}


@pytest.mark.parametrize(("least", "verdict"), [(200.0, Verdict.PASS), (200.1, Verdict.FAIL)])
def test_below_the_operators_bandwidth_it_fails(least: float, verdict: Verdict):
    findings = judged(sample(), limits=MembwParameters(min_bandwidth_gb_per_s=least))
    finding = next(f for f in findings.values() if f.measurements)
    assert finding.verdict is verdict
    assert finding.measurements[0].threshold == least
    assert finding.fault_class is (FaultClass.CONTACT if verdict is Verdict.FAIL else FaultClass.NONE)


def test_of_two_nodes_alike_the_slower_one_warns():
    findings = judged(sample(0), sample(1, gb_per_s=150.0))
    assert bad(findings) == {("numa/1", "SlowerThanSiblings"): Verdict.WARN}
    assert "75%" in findings["numa/1", "SlowerThanSiblings"].message
    assert findings["numa/0", "Bandwidth"].measurements[1].value == pytest.approx(200 / 150)


def test_of_four_nodes_the_median_of_the_others_counts():
    findings = judged(*(sample(number, gb_per_s=speed) for number, speed in enumerate((100.0, 95.0, 105.0, 70.0))))
    assert bad(findings) == {("numa/3", "SlowerThanSiblings"): Verdict.WARN}


def test_at_the_share_it_passes():
    assert bad(judged(sample(0), sample(1, gb_per_s=160.0))) == {}


def test_nodes_that_are_equipped_differently_are_not_compared():
    assert bad(judged(sample(0), sample(1, memory=200 * GIB, gb_per_s=100.0))) == {}
    assert bad(judged(sample(0), sample(1, memory=240 * GIB, gb_per_s=100.0))) != {}


def test_a_busy_node_is_no_slow_memory():
    findings = judged(sample(0), sample(1, gb_per_s=20.0, cpu_share=0.5))
    assert bad(findings) == {("numa/1", "Disturbed"): Verdict.UNKNOWN}
    assert "50%" in findings["numa/1", "Disturbed"].message


def test_memory_that_could_not_be_had_at_the_node_says_nothing_of_its_speed():
    findings = judged(sample(0, gb_per_s=20.0, local_share=0.5), sample(1))
    assert bad(findings) == {("numa/0", "Disturbed"): Verdict.UNKNOWN}


def test_a_disturbed_node_is_nobodys_measure():
    assert bad(judged(sample(0, gb_per_s=900.0, cpu_share=0.1), sample(1))) == {
        ("numa/0", "Disturbed"): Verdict.UNKNOWN
    }


def test_a_disturbed_node_with_wrong_words_fails_all_the_same():
    findings = judged(sample(wrong_chunks=1, cpu_share=0.1))
    assert bad(findings) == {
        ("numa/0", "MemoryMismatch"): Verdict.FAIL,
        ("numa/0", "Disturbed"): Verdict.UNKNOWN,
    }


def test_a_node_that_was_not_measured_is_unknown_and_the_others_are_judged():
    findings = judged(NumaSample(0, 0, reason="NoRoom", trouble="512 MiB to be taken, 100 MiB free"), sample(1))
    assert bad(findings) == {("numa/0", "NoRoom"): Verdict.UNKNOWN}
    assert "100 MiB free" in findings["numa/0", "NoRoom"].message


def test_no_nodes_no_findings():
    assert judge([], LIMITS) == []
