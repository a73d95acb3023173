"""One run of a pod's containers on a node, and which of its time can be booked by now. Pure.

Time is booked once, in order, and never corrected. It is booked SETTLE_S late, when everything about it is known: how
the run ended, and the faults of its node and of its peers' nodes. Work of a run that goes on is booked up to its last
checkpoint. So how much is booked at a time depends only on the pod's own times, and a new leader continues where the
last one stopped, without a record of each pod. What is not booked yet is at risk.
"""

from collections.abc import Iterator
from typing import NamedTuple

from muster_tainter.goodput.causes import Cause, Via
from muster_tainter.goodput.pods.pod_facts import End, PodFacts

SETTLE_S = 300.0
"""From an end until its cause is final: attribution.PEERS_S until a peer has ended, LATE_S until the fault of its
node is found, and a minute for the reports."""
STUCK_S = 900.0  # what a start takes beyond this is lost; as for inFlight.startWithin


class Piece(NamedTuple):
    begin: float
    end: float
    cause: Cause
    via: Via


class Attempt:
    """place, team: indices of rows of the books. bound, started, ended: seconds since the epoch; 0: not yet
    mark:   booked until here
    shown:  the strongest cause that its end shows its peers so far
    cause:  why it ended, once settled. before: the run that ended when this one began; its cause explains the restart
    resumed: whether ``mark`` takes what a former leader has booked into account
    """

    __slots__ = (
        "before", "bound", "cause", "checkpoint", "devices", "end", "ended", "evidence", "gang", "mark", "node",
        "on_node", "place", "resumed", "service", "shown", "started", "team", "uid", "via", "why",
    )  # fmt: skip

    def __init__(self, facts: PodFacts, place: int, team: int, checkpoint: float, now: float) -> None:
        self.uid = facts.uid
        self.node = facts.node
        self.gang = facts.gang
        self.place, self.team = place, team
        self.devices, self.on_node = facts.devices, facts.on_node
        self.service = facts.service
        self.checkpoint = facts.checkpoint or checkpoint
        self.bound = min(facts.bound, now)
        self.mark = self.bound
        self.started = self.ended = 0.0
        self.end, self.why = End.NONE, ""
        self.cause: Cause | None = None
        self.via = Via.OWN
        self.evidence: Cause | None = None  # the strongest from its node so far
        self.shown: Cause | None = None
        self.before: Attempt | None = None
        self.resumed = False

    def follow(self, facts: PodFacts, now: float) -> "Attempt | None":
        """Take over what the pod says now. Returns the attempt that follows, if its containers restart in place.

        What is known stays: a late or repeated message changes nothing. Times of the node are taken only between those
        of the API server and ``now``.
        """
        if self.ended:
            return None
        if not self.started and self.before is None and facts.bound > self.bound:
            # the condition that says when comes after the node's name, and until then it is the time of its creation
            self.bound = min(facts.bound, now)
            self.mark = max(self.mark, self.bound)
        crashed = min(facts.crashed, now)
        if not facts.end and self.started and crashed > self.started:
            self._finish(crashed, facts.crash, facts.crash_why)
            return self._next(facts, now)
        if facts.started and not self.started and (not self.before or facts.started >= self.bound):
            self.started = min(max(facts.started, self.bound), now)
        if facts.end:
            self._finish(min(facts.ended, now), facts.end, facts.why)
        return None

    def vanish(self, how: End, now: float) -> None:
        """Its object is gone."""
        if not self.ended:
            self._finish(now, how, "Deleted" if how is End.DELETED else "")

    def _finish(self, at: float, how: End, why: str) -> None:
        self.ended = max(at, self.started, self.bound)
        self.end, self.why = how, why

    def _next(self, facts: PodFacts, now: float) -> "Attempt":
        following = Attempt(facts, self.place, self.team, self.checkpoint, now)
        following.bound = following.mark = self.ended
        following.before = self
        following.follow(facts, now)
        return following

    def resume(self, booked_until: float) -> None:
        """A former leader has booked everything that could be booked then."""
        self.mark = max(self.mark, self.firm_until(booked_until))

    # what can be booked

    def is_settled(self, now: float) -> bool:
        return bool(self.ended) and self.ended <= now - SETTLE_S

    def firm_until(self, now: float) -> float:
        """How far it can be booked at ``now``: never less than at an earlier time, and independent of anything that
        happened after ``now - SETTLE_S``."""
        horizon = now - SETTLE_S
        if self.ended and self.ended <= horizon:
            return self.ended
        if self.started and self.started <= horizon:
            return self._kept(horizon)
        return self.bound  # its start, or its end, will say what the wait was

    def _kept(self, at: float) -> float:
        """The last checkpoint before ``at``, which nothing can undo."""
        return at if self.service else self.started + (at - self.started) // self.checkpoint * self.checkpoint

    def take(self, now: float) -> Iterator[Piece]:
        """The pieces that can be booked now and have not been: they cover ``mark`` to :meth:`firm_until`. Settle the
        cause of an end first."""
        until = self.firm_until(now)
        if until <= self.mark:
            return
        begin, self.mark = self.mark, until
        for piece in self._pieces(until):
            if piece.end > begin and piece.begin < until:
                yield Piece(max(piece.begin, begin), min(piece.end, until), piece.cause, piece.via)

    def _pieces(self, until: float) -> Iterator[Piece]:
        cause, via = self.cause or self.evidence or Cause.UNKNOWN, self.via
        if not self.started:
            yield Piece(self.bound, until, cause, via)
            return
        start, start_via = self._start()
        normal = self.started if self.before else min(self.started, self.bound + STUCK_S)
        yield Piece(self.bound, normal, start, start_via)
        yield Piece(normal, self.started, Cause.UNKNOWN, Via.OWN)
        failed = self.ended and until >= self.ended and self.end is not End.SUCCEEDED
        kept = self._kept(self.ended) if failed else until
        yield Piece(self.started, kept, Cause.GOODPUT, Via.OWN)
        yield Piece(kept, until, cause, via)

    def _start(self) -> tuple[Cause, Via]:
        """A restart in place is lost to what ended the run before."""
        former = self.before
        if former is None or former.end is End.SUCCEEDED or former.cause is None:
            return Cause.OVERHEAD, Via.OWN
        return former.cause, former.via

    def at_risk(self, now: float) -> float:
        """Seconds that are not booked yet."""
        return max(0.0, min(self.ended or now, now) - self.mark)

    def lost(self) -> float:
        """Seconds that its end has cost."""
        if not self.ended or self.end is End.SUCCEEDED:
            return 0.0
        return self.ended - (self._kept(self.ended) if self.started else self.bound)
