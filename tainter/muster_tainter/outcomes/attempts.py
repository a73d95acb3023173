"""Turns the outcome of a pod into an attempt. Pure, but for what it remembers of the nodes' devices."""

from collections.abc import Collection

from muster_tainter.outcomes.devices import AllocatedDevices
from muster_tainter.outcomes.evidence import Attempt
from muster_tainter.outcomes.kinds import ADMISSION, DEVICE_ALLOCATION, KIND_OF, KINDS, Stage
from muster_tainter.outcomes.pods import PodOutcome


class AttemptMaker:
    """kinds: those that count; a failure of another kind is none of theirs."""

    def __init__(self, kinds: Collection[str], devices: AllocatedDevices | None = None) -> None:
        self.devices = AllocatedDevices() if devices is None else devices
        self._host = frozenset(kind.name for kind in KINDS if not kind.tenant and kind.name in kinds)

    def kind_of(self, outcome: PodOutcome) -> str | None:
        """As in the outcome, unless the request's size may be why the devices were not allocated."""
        if outcome.kind == DEVICE_ALLOCATION and not self.devices.can(outcome.node, outcome.devices):
            return ADMISSION
        return outcome.kind

    def attempt(self, outcome: PodOutcome) -> Attempt | None:
        """``outcome.at``: when the pod ended, or when it was seen not to have started. None: it says nothing."""
        kind = self.kind_of(outcome)
        if kind is None:
            return None
        admitted = not kind or KIND_OF[kind].stage is not Stage.ADMISSION
        passed: frozenset[str] = frozenset()
        if admitted and outcome.devices:
            self.devices.allocated(outcome.node, outcome.devices)
            passed = self._host
        elif admitted:
            # nothing was allocated: a node whose devices are lost still runs such pods
            passed = self._host - {DEVICE_ALLOCATION}
        return Attempt(
            node=outcome.node,
            owner=outcome.owner,
            namespace=outcome.namespace,
            kind=kind,
            failed=bool(kind),
            at=outcome.at,
            started=outcome.created,
            pod=outcome.uid,
            passed=passed,
        )
