"""Judges one trial claim. Faults of the storage system are a FAIL; anything that prevented the trial is UNKNOWN."""

from enum import StrEnum

from muster_checks.base.declaration import VolumeTrialResult
from muster_checks.base.execution import CannotTell, NotHere
from muster_checks.base.vocabulary import Finding, Measurement, Verdict, shorten
from muster_checks.pvc import PvcParameters


class TrialStage(StrEnum):
    """How far a trial got. ``REFUSED``: the API rejected the claim or pod; ``UNPLACED``: the pod was not scheduled."""

    NO_CLASS = "no-class"
    REFUSED = "refused"
    UNBOUND = "unbound"
    UNPLACED = "unplaced"
    UNMOUNTED = "unmounted"
    NOT_STARTED = "not-started"
    UNWRITTEN = "unwritten"
    WRITTEN = "written"


def judge(trial: VolumeTrialResult, parameters: PvcParameters) -> list[Finding]:
    """One finding on ``storage/<class>``.

    It has no fault class: a storage system that is down is down for every node, and tainting them all would not help. A
    policy rule may still taint for it.
    """
    name = trial.storage_class or parameters.storage_class or "default"
    answer = f": {trial.said}" if trial.said else ""
    match trial.stage:
        case TrialStage.NO_CLASS:
            raise NotHere(f"no StorageClass to test{answer}", "NoStorageClass")
        case TrialStage.REFUSED:
            raise CannotTell(f"could not create the test claim{answer}", "ClaimRefused")
        case TrialStage.UNPLACED:
            raise CannotTell(f"the test pod was not scheduled to this node{answer}", "PodNotPlaced")
        case TrialStage.NOT_STARTED:
            raise CannotTell(f"the test pod did not start, for a reason other than its volume{answer}", "PodNotStarted")
        case TrialStage.UNBOUND:
            reason, what = "ClaimNotBound", f"claim not bound after {parameters.bind_timeout_s:g} s"
        case TrialStage.UNMOUNTED:
            reason, what = "VolumeNotMounted", f"volume not mounted after {parameters.write_timeout_s:g} s"
        case TrialStage.UNWRITTEN:
            reason, what = "VolumeNotWritten", "the volume was mounted, but writing to it failed"
        case TrialStage.WRITTEN:
            reason, what = "VolumeWritten", "bound and written"
        case stage:
            raise CannotTell(f"unknown outcome of the trial, {stage!r}{answer}", "NotMeasured")
    return [
        Finding(
            component=f"storage/{name}"[:128],
            verdict=Verdict.PASS if trial.stage == TrialStage.WRITTEN else Verdict.FAIL,
            reason=reason,
            message=shorten(f"{name}: {what}{answer}"),
            measurements=tuple(
                Measurement(label, round(value, 3), "s", limit)
                for label, value, limit in (
                    ("bound", trial.bound_after_s, parameters.bind_timeout_s),
                    ("written", trial.written_after_s, parameters.write_timeout_s),
                )
                if value is not None
            ),
        )
    ]
