"""Decides which agent publishes for the node, so that two agents never both do. Pure; time is a parameter.

The claim is ``status.agent.podUID``. A new agent that finds another agent there writes only its own name and waits for
a grace period. A living holder notices this at once and writes its own name back, and the new agent withdraws. If the
holder is dead, the new agent takes over. A claim does not change ``observedAt``, so a holder can tell it from a
takeover that happened while it was disconnected; after a takeover it must claim the node like a new agent.
"""

from enum import Enum, auto

import msgspec

GRACE_S = 5.0
LONGEST_WAIT_S = 30.0


class ClaimAction(Enum):
    PUBLISH = auto()
    CLAIM = auto()
    WAIT = auto()


class ClaimDecision(msgspec.Struct, frozen=True):
    """The next step. WAIT lasts until ``at`` (monotonic seconds) or until the object changes."""

    do: ClaimAction
    at: float = 0.0


class NodeClaim:
    """The claim of the agent ``pod_uid`` on its node."""

    def __init__(self, pod_uid: str, *, grace_s: float = GRACE_S) -> None:
        self.pod_uid = pod_uid
        self._grace_s = grace_s
        self._held = False
        self._claimed_at: float | None = None
        self._wait_until: float | None = None
        self._wait_s = grace_s
        self._written_at = ""
        self.holder = ""
        """The other agent that holds the node, while it rejects this one."""

    @property
    def held(self) -> bool:
        return self._held

    def record_write(self, observed_at: str) -> None:
        """A complete status was written in this agent's name."""
        self._held = True
        self._written_at = observed_at
        self._claimed_at = self._wait_until = None
        self._wait_s = self._grace_s
        self.holder = ""

    def record_claim(self, now: float) -> None:
        """The claim was written."""
        self._claimed_at = now
        self._wait_until = None

    def decide(self, named: str, observed_at: str, now: float) -> ClaimDecision:
        """``named``: the podUID in the object; ``observed_at``: its observedAt; ``now``: monotonic seconds."""
        if named == "":
            return self._hold()
        if named == self.pod_uid:
            return self._named(now)
        if self._held:
            if observed_at == self._written_at:
                return ClaimDecision(ClaimAction.PUBLISH)  # a new agent's claim: reject it by publishing
            self._held = False
            self.holder = named
        if self._claimed_at is not None:
            # rejected: the holder has written its name back
            self._claimed_at = None
            self.holder = named
            self._wait_until = now + self._wait_s
            self._wait_s = min(2 * self._wait_s, LONGEST_WAIT_S)
        if self._wait_until is not None and now < self._wait_until:
            return ClaimDecision(ClaimAction.WAIT, self._wait_until)
        return ClaimDecision(ClaimAction.CLAIM)

    def _named(self, now: float) -> ClaimDecision:
        if self._held or (self._claimed_at is None and self._wait_until is None):
            return self._hold()  # already ours: the container was restarted in its pod
        if self._claimed_at is None:
            self.record_claim(now)  # another client wrote this agent's name
        assert self._claimed_at is not None  # noqa: S101 - set by record_claim()
        ends = self._claimed_at + self._grace_s
        return self._hold() if now >= ends else ClaimDecision(ClaimAction.WAIT, ends)

    def _hold(self) -> ClaimDecision:
        self._held = True
        self._claimed_at = self._wait_until = None
        self.holder = ""
        return ClaimDecision(ClaimAction.PUBLISH)
