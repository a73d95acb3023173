"""What a trial of a claim is worth as a verdict."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster_checks.base.declaration import NodeView
from muster_checks.base.execution import CannotTell, NotHere, run_probe
from muster_checks.base.vocabulary import FaultClass, Verdict
from muster_checks.pvc import PVC, PvcParameters
from muster_checks.pvc.judge import TrialStage, judge


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    stage: str
    storage_class: str = "fast"
    bound_after_s: float | None = None
    written_after_s: float | None = None
    said: str = ""


class Lender:
    """Lends what it was given, and keeps what was asked."""

    def __init__(self, trial: Trial) -> None:
        self.trial = trial
        self.asked: dict[str, object] = {}

    async def try_claim(self, node: str, **asked: object) -> Trial:
        self.asked = {"node": node, **asked}
        return self.trial


def test_bound_and_written_passes_with_its_times():
    (finding,) = judge(Trial(stage="written", bound_after_s=1.25, written_after_s=4.5), PvcParameters())
    assert (finding.verdict, finding.component) == (Verdict.PASS, "storage/fast")
    assert [(m.name, m.value, m.threshold) for m in finding.measurements] == [
        ("bound", 1.25, 90.0),
        ("written", 4.5, 120.0),
    ]


@pytest.mark.parametrize(
    ("stage", "reason"),
    [("unbound", "ClaimNotBound"), ("unmounted", "VolumeNotMounted"), ("unwritten", "VolumeNotWritten")],
)
def test_what_the_storage_did_not_do_fails_without_asking_for_the_node(stage: str, reason: str):
    said = "no persistent volumes available"
    (finding,) = judge(Trial(stage=stage, said=said), PvcParameters())
    assert (finding.verdict, finding.reason, finding.fault_class) == (Verdict.FAIL, reason, FaultClass.NONE)
    assert said in finding.message


@pytest.mark.parametrize("stage", ["refused", "unplaced", "not-started", "of another release"])
def test_what_hindered_the_trial_itself_proves_nothing(stage: str):
    with pytest.raises(CannotTell, match="quota"):
        judge(Trial(stage=stage, said="exceeded quota"), PvcParameters())


@pytest.mark.parametrize("stage", [*TrialStage, "of another release"])
def test_a_message_without_a_word_of_the_cluster_ends_properly(stage: str):
    try:
        (finding,) = judge(Trial(stage=stage), PvcParameters())
        message = finding.message
    except (CannotTell, NotHere) as error:
        message = error.message
    assert message.strip(" :;,") == message


def test_a_cluster_without_a_class_has_nothing_to_try():
    with pytest.raises(NotHere, match="no StorageClass"):
        judge(Trial(stage="no-class"), PvcParameters())


async def test_without_rights_it_is_unknown_and_says_who_has_them():
    result = await run_probe(PVC, NodeView(), PvcParameters())
    assert (result.verdict, result.reason) == (Verdict.UNKNOWN, "NoRights")
    assert "kubeconfig" in result.message


async def test_the_parameters_reach_whoever_lends_the_rights():
    lender = Lender(Trial(stage="written", storage_class=""))
    result = await run_probe(PVC, NodeView(name="n1", volumes=lender), PvcParameters(storage_class="slow", size_mib=3))
    assert result.verdict is Verdict.PASS
    assert result.findings[0].component == "storage/slow"
    assert lender.asked == {
        "node": "n1",
        "storage_class": "slow",
        "size_mib": 3,
        "image": "busybox",
        "bind_timeout_s": 90.0,
        "write_timeout_s": 120.0,
    }


@given(
    stage=st.sampled_from(list(TrialStage)),
    storage_class=st.text(max_size=300),
    said=st.text(max_size=2000),
    bound=st.none() | st.floats(0, 1e9),
)
def test_any_trial_gives_findings_that_can_be_published(
    stage: TrialStage, storage_class: str, said: str, bound: float | None
):
    trial = Trial(stage=stage, storage_class=storage_class, said=said, bound_after_s=bound)
    try:
        findings = judge(trial, PvcParameters())
    except (CannotTell, NotHere):
        return
    assert all(len(f.component) <= 128 and len(f.message.encode()) <= 256 for f in findings)
