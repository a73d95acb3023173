"""Books the time that pods hold accelerators. Pure: the clock is a parameter, and messages may come late, twice and in
any order, as long as they come before the end that they explain is settled."""

import heapq
from collections.abc import Iterable, Iterator

from muster_tainter.goodput.books import Books, Figure, account
from muster_tainter.goodput.causes import INTERRUPTS, Cause, Side, Via
from muster_tainter.goodput.lemons import Lemons
from muster_tainter.goodput.node_books import NodeBooks
from muster_tainter.goodput.pods.attempt import SETTLE_S, Attempt
from muster_tainter.goodput.pods.attribution import PEERS_S, NodeEvidence, PodEnd, from_node, primary, settle, stronger
from muster_tainter.goodput.pods.gang_ends import GangEnds
from muster_tainter.goodput.pods.pod_facts import End, PodFacts

PODS_LIMIT = 150_000  # with accelerators; further ones are only counted


class _Gang:
    """Pods of one owner. runs: how many are not booked to their end. mark: its job time is booked until here.
    interrupted: when it last was. ends: those that may explain the ends of others."""

    __slots__ = ("ends", "interrupted", "mark", "runs")

    def __init__(self) -> None:
        self.runs = 0
        self.mark = 0.0
        self.interrupted = 0.0
        self.ends = GangEnds()


class PodBooks:
    """checkpoint: seconds between two of pods that do not say. since: nothing before is booked. resumed_from: when a
    former leader booked last; 0: there was none."""

    def __init__(
        self, books: Books, lemons: Lemons, nodes: NodeBooks, checkpoint: float, since: float, resumed_from: float
    ) -> None:
        self._books = books
        self._lemons = lemons
        self._nodes = nodes
        self._checkpoint = checkpoint
        self._since = since
        self._resumed_from = resumed_from
        self._known: dict[str, Attempt | None] = {}  # by uid; None: booked to its end
        self._open: dict[int, Attempt] = {}  # not booked to their end
        self._due: list[tuple[float, int, Attempt]] = []  # by when they are settled
        self._ending: dict[str, dict[int, Attempt]] = {}  # by node: ended and not settled
        self._gangs: dict[str, _Gang] = {}
        self._gone: set[str] = set()
        self._number = 0
        self.dropped = 0

    def __len__(self) -> int:
        return len(self._open)

    def changed(self, facts: PodFacts, place: int, team: int, now: float) -> None:
        if facts.uid in self._known:
            attempt = self._known[facts.uid]
        elif len(self._known) >= PODS_LIMIT:
            self.dropped += 1
            return
        else:
            attempt = Attempt(facts, place, team, self._checkpoint, now)
            self._add(attempt, now)
        if attempt is not None and not attempt.ended:
            self._follow(attempt, facts, now)

    def gone(self, uid: str, how: End, now: float) -> None:
        """Its object is deleted. how: :attr:`PodFacts.leaving` of its last message."""
        attempt = self._known.get(uid)
        if attempt is None:
            self._known.pop(uid, None)
            return
        self._gone.add(uid)
        if not attempt.ended:
            attempt.vanish(how or End.DELETED, now)
            self._ended(attempt, now)

    def node_changed(self, name: str, evidence: NodeEvidence) -> None:
        """Call it after every change of a node."""
        for attempt in self._ending.get(name, {}).values():
            self._weigh(attempt, evidence)

    def runs(self) -> Iterable[Attempt]:
        """Those that are not booked to their end."""
        return self._open.values()

    def _add(self, attempt: Attempt, now: float) -> None:
        self._open[id(attempt)] = attempt
        self._known[attempt.uid] = attempt
        self._gang(attempt).runs += 1
        if attempt.on_node:
            self._nodes.use(attempt.node, attempt.devices, now)

    def _follow(self, attempt: Attempt, facts: PodFacts, now: float) -> None:
        following = attempt.follow(facts, now)
        self._resume(attempt)
        if following is not None:
            self._add(following, now)
            self._resume(following)
        for each in (attempt, following):
            if each is not None and each.ended:
                self._ended(each, now)

    def _resume(self, attempt: Attempt) -> None:
        if attempt.resumed:
            return
        attempt.resumed = True
        if self._resumed_from:
            attempt.resume(self._resumed_from)
        attempt.mark = max(attempt.mark, self._since)

    def _ended(self, attempt: Attempt, now: float) -> None:
        if attempt.on_node:
            self._nodes.use(attempt.node, -attempt.devices, now)
        self._number += 1
        heapq.heappush(self._due, (attempt.ended + SETTLE_S, self._number, attempt))
        self._ending.setdefault(attempt.node, {})[id(attempt)] = attempt
        self._weigh(attempt, self._nodes.evidence(attempt.node))

    def _weigh(self, attempt: Attempt, evidence: NodeEvidence) -> None:
        """What its node shows of its end; its peers are shown the result."""
        end = PodEnd(attempt.bound, attempt.ended, attempt.end, attempt.on_node)
        attempt.evidence = stronger(attempt.evidence, from_node(end, evidence))
        shown = primary(attempt.end, attempt.evidence)
        if shown is not None and shown is not attempt.shown:
            attempt.shown = shown
            self._gang(attempt).ends.add(attempt.ended, attempt.uid, shown)

    def _gang(self, attempt: Attempt) -> _Gang:
        return self._gangs.setdefault(attempt.gang or attempt.uid, _Gang())

    # booking

    def settle_due(self, now: float) -> Iterator[None]:
        """Settle the cause of every end that is due; yields after each. Those that come meanwhile are settled too."""
        while self._due and self._due[0][0] <= now:
            self._settle(heapq.heappop(self._due)[2])
            yield

    def advance(self, now: float) -> Iterator[Attempt]:
        """Book everything that is due, after :meth:`settle_due`; yields each run after it is booked."""
        for attempt in list(self._open.values()):
            self._book(attempt, now)
            yield attempt
            if attempt.cause is not None and attempt.mark >= attempt.ended:
                self._close(attempt)

    def _settle(self, attempt: Attempt) -> None:
        ending = self._ending[attempt.node]
        del ending[id(attempt)]
        if not ending:
            del self._ending[attempt.node]
        gang = self._gang(attempt)
        peers = gang.ends.strongest(attempt.ended, attempt.uid)
        attempt.cause, attempt.via = settle(attempt.end, attempt.evidence, peers)
        gang.ends.forget(attempt.ended - 2 * PEERS_S)
        if attempt.ended <= max(self._since, self._resumed_settled):
            return  # a former leader has counted it
        if attempt.via is Via.NODE and attempt.cause in INTERRUPTS:
            self._lemons.add(
                attempt.node, attempt.ended, f"interrupted: {attempt.cause}", attempt.lost() * attempt.devices
            )
        if attempt.cause in INTERRUPTS and attempt.ended > gang.interrupted + PEERS_S:
            gang.interrupted = attempt.ended
            self._books.count(attempt.place, Figure.INTERRUPTIONS + attempt.cause, attempt.ended)

    @property
    def _resumed_settled(self) -> float:
        return self._resumed_from - SETTLE_S if self._resumed_from else 0.0

    def _book(self, attempt: Attempt, now: float) -> None:
        gang = self._gang(attempt)
        for piece in attempt.take(now):
            name = account(Side.WORK, piece.cause, piece.via)
            self._books.book(attempt.place, attempt.team, name, piece.begin, piece.end, attempt.devices)
            begin = max(piece.begin, gang.mark)
            if piece.end > begin and piece.cause is Cause.GOODPUT:
                self._books.book(attempt.place, None, Figure.JOBS, begin, piece.end, 1.0)
                gang.mark = piece.end

    def _close(self, attempt: Attempt) -> None:
        del self._open[id(attempt)]
        attempt.before = None
        gang = self._gang(attempt)
        gang.runs -= 1
        if not gang.runs:
            del self._gangs[attempt.gang or attempt.uid]
        if self._known.get(attempt.uid) is attempt:
            if attempt.uid in self._gone:
                self._gone.discard(attempt.uid)
                del self._known[attempt.uid]
            else:
                self._known[attempt.uid] = None
