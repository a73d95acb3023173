"""Turns the outcome of a pod into attempts: one for each kind of failure about which its end says something. Pure, but
for what it remembers of the nodes' devices."""

from collections.abc import Collection, Iterator

from muster_tainter.outcomes.devices import AllocatedDevices
from muster_tainter.outcomes.evidence import Attempt
from muster_tainter.outcomes.kinds import ADMISSION, DEVICE_ALLOCATION, KIND_OF, KINDS, Stage
from muster_tainter.outcomes.pods import PodOutcome


class AttemptMaker:
    """kinds: those that count; others are neither failures nor successes."""

    def __init__(self, kinds: Collection[str], devices: AllocatedDevices | None = None) -> None:
        self.devices = AllocatedDevices() if devices is None else devices
        counted = [kind for kind in KINDS if kind.name in kinds]
        self._by_stage = {stage: tuple(kind.name for kind in counted if kind.stage is stage) for stage in Stage}
        self._kinds = frozenset(kinds)

    def kind_of(self, outcome: PodOutcome) -> str | None:
        """As in the outcome, unless the request's size may be why the devices were not allocated."""
        if outcome.kind == DEVICE_ALLOCATION and not self.devices.can(outcome.node, outcome.devices):
            return ADMISSION
        return outcome.kind

    def attempts(self, outcome: PodOutcome) -> Iterator[Attempt]:
        """``outcome.at``: when the pod ended, or when it was seen not to have started."""
        kind = self.kind_of(outcome)
        if kind is None:
            return
        failed_in = KIND_OF[kind].stage if kind else None
        if outcome.devices and failed_in is not Stage.ADMISSION:
            self.devices.allocated(outcome.node, outcome.devices)
        for stage, names in self._by_stage.items():
            if failed_in is None or stage < failed_in:
                for name in names:
                    yield _attempt(outcome, name, failed=False)
            elif stage == failed_in and kind in self._kinds:
                yield _attempt(outcome, kind, failed=True)


def _attempt(outcome: PodOutcome, kind: str, *, failed: bool) -> Attempt:
    return Attempt(
        node=outcome.node,
        owner=outcome.owner,
        namespace=outcome.namespace,
        kind=kind,
        failed=failed,
        at=outcome.at,
        started=outcome.created,
        pod=outcome.uid,
    )
