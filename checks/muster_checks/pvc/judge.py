"""Judges one trial of a claim. What the storage system does is proven; what hindered the trial itself is UNKNOWN."""

from enum import StrEnum

from muster_checks.base.declaration import VolumeTrialResult
from muster_checks.base.execution import CannotTell, NotHere
from muster_checks.base.vocabulary import Finding, Measurement, Verdict, shorten
from muster_checks.pvc import PvcParameters


class TrialStage(StrEnum):
    """How far a trial came. ``REFUSED``: the API took no claim or pod; ``UNPLACED``: the pod got no node."""

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

    No class of fault: a storage system that is away is away for every node, and tainting them all would help nobody. A
    policy rule may still taint for it.
    """
    name = trial.storage_class or parameters.storage_class or "default"
    match trial.stage:
        case TrialStage.NO_CLASS:
            raise NotHere(f"no StorageClass to ask: {trial.said}", "NoStorageClass")
        case TrialStage.REFUSED:
            raise CannotTell(f"the claim could not be tried: {trial.said}", "ClaimRefused")
        case TrialStage.UNPLACED:
            raise CannotTell(f"the pod that writes got no place on this node: {trial.said}", "PodNotPlaced")
        case TrialStage.NOT_STARTED:
            raise CannotTell(f"the pod that writes did not start, for another reason: {trial.said}", "PodNotStarted")
        case TrialStage.UNBOUND:
            reason, what = "ClaimNotBound", f"claim not bound after {parameters.bind_timeout_s:g} s"
        case TrialStage.UNMOUNTED:
            reason, what = "VolumeNotMounted", f"volume not mounted after {parameters.write_timeout_s:g} s"
        case TrialStage.UNWRITTEN:
            reason, what = "VolumeNotWritten", "the volume was mounted, but writing to it failed"
        case TrialStage.WRITTEN:
            reason, what = "VolumeWritten", "bound and written"
        case stage:
            raise CannotTell(f"a trial of no known outcome, {stage!r}: {trial.said}", "NotMeasured")
    return [
        Finding(
            component=f"storage/{name}"[:128],
            verdict=Verdict.PASS if trial.stage == TrialStage.WRITTEN else Verdict.FAIL,
            reason=reason,
            message=shorten(f"{name}: {what}" + (f": {trial.said}" if trial.said else "")),
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
