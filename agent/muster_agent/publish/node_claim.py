"""Whose node it is: two agents that both believe to be a node's must not both publish. Pure; time is handed in.

The claim is ``status.agent.podUID``. A newcomer that finds another agent named there writes its own name and nothing
else, and waits a grace: a living holder sees that at once and writes itself back, and the newcomer stands aside. A
dead one does not. A claim alone leaves ``observedAt`` as it was, by which a holder tells it from a takeover that
happened while it was cut off; after a takeover it comes back as a newcomer itself.
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
    """What to do now; WAIT until ``at`` (monotonic seconds) or until the object changes."""

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
        """The other agent that holds the node, while it refuses us."""

    @property
    def held(self) -> bool:
        return self._held

    def record_write(self, observed_at: str) -> None:
        """A whole status was written under our name."""
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
                return ClaimDecision(ClaimAction.PUBLISH)  # somebody's claim on what we wrote last: we are alive
            self._held = False
            self.holder = named
        if self._claimed_at is not None:
            # refused: the holder wrote itself back
            self._claimed_at = None
            self.holder = named
            self._wait_until = now + self._wait_s
            self._wait_s = min(2 * self._wait_s, LONGEST_WAIT_S)
        if self._wait_until is not None and now < self._wait_until:
            return ClaimDecision(ClaimAction.WAIT, self._wait_until)
        return ClaimDecision(ClaimAction.CLAIM)

    def _named(self, now: float) -> ClaimDecision:
        if self._held or (self._claimed_at is None and self._wait_until is None):
            return self._hold()  # ours already: the container was restarted within its pod
        if self._claimed_at is None:
            self.record_claim(now)  # somebody else wrote our name
        assert self._claimed_at is not None  # noqa: S101 - set by record_claim()
        ends = self._claimed_at + self._grace_s
        return self._hold() if now >= ends else ClaimDecision(ClaimAction.WAIT, ends)

    def _hold(self) -> ClaimDecision:
        self._held = True
        self._claimed_at = self._wait_until = None
        self.holder = ""
        return ClaimDecision(ClaimAction.PUBLISH)
