"""Which hop `muster doctor --canary` names."""

import pytest
from tests.wording.facts import missing_facts

from muster_checks.base.vocabulary import Verdict
from muster_cli.doctor.canary import CanaryTrial, judge_canary
from muster_kube.nodehealth import CanaryRequest
from muster_tainter.canary.trial import Arrival


def request(result: str = "", message: str = "", by: str = "me") -> CanaryRequest:
    return CanaryRequest(id="x", by=by, result=result, message=message)


@pytest.mark.parametrize(
    ("trial", "verdicts", "facts"),
    [
        (CanaryTrial("", exists=False), [Verdict.FAIL], ["NodeHealth"]),
        (CanaryTrial("n9", exists=False), [Verdict.FAIL], ["n9", "NodeHealth"]),
        (CanaryTrial("n1"), [Verdict.FAIL], ["agent", "n1"]),
        (CanaryTrial("n1", agent=True), [Verdict.FAIL], ["agent", "n1", "30s"]),
        (CanaryTrial("n1", agent=True, unread=True), [Verdict.FAIL], ["kernel log", "n1", "/dev/kmsg"]),
        (CanaryTrial("n1", agent=True, reported_s=0.31), [Verdict.PASS, Verdict.FAIL], ["0.3 s", "tainter", "30s"]),
        (
            CanaryTrial("n1", agent=True, reported_s=0.3, decided_s=0.5, request=request(Arrival.ARRIVED, "taint=x")),
            [Verdict.PASS, Verdict.PASS],
            ["0.3 s", "0.5 s", "taint=x"],
        ),
        (
            CanaryTrial("n1", agent=True, replaced=True, request=request(by="them")),
            [Verdict.UNKNOWN],
            ["n1", "them"],
        ),
        (
            CanaryTrial("n1", agent=True, reported_s=0.3, error="no route"),
            [Verdict.PASS, Verdict.UNKNOWN],
            ["no route"],
        ),
    ],
)
def test_the_hop_is_named(trial: CanaryTrial, verdicts: list[Verdict], facts: list[str]) -> None:
    found = judge_canary(trial)
    assert [finding.verdict for finding in found] == verdicts
    assert missing_facts(" ".join(finding.what for finding in found), *facts) == []


@pytest.mark.parametrize("arrival", [each for each in Arrival if each is not Arrival.ARRIVED])
def test_what_people_have_set_is_a_warning(arrival: Arrival) -> None:
    trial = CanaryTrial("n1", agent=True, reported_s=0.3, decided_s=0.5, request=request(arrival.value, "why"))
    last = judge_canary(trial)[-1]
    assert last.verdict is Verdict.WARN
    assert missing_facts(last.what, arrival.value, "why") == []
