"""Reads the logs of all pods of interest, in turns of bounded size, and finds the lines that match a pattern.

A turn may take as long as the disk does, so it runs in a thread of its own. It takes as much from each container in
turn, so a flood in one log does not keep others from being read.
"""

import os
import re
import time
from collections.abc import Collection, Iterator
from fnmatch import fnmatchcase
from itertools import chain, islice, zip_longest

import msgspec

from muster_checks.base.declaration import LogOpener, StepTotals
from muster_checks.containerlog.container_log import ContainerLog, Piece
from muster_checks.containerlog.cri import TIME_BYTES, CriLines, MalformedLine, epoch_seconds
from muster_checks.containerlog.log_folder import listed
from muster_checks.containerlog.log_opener import NotALog
from muster_checks.containerlog.patterns import PatternHit, Patterns
from muster_checks.containerlog.step_times import StepTimes

TURN_BYTES = 1 << 20
PODS_LIMIT = 4096  # folders of pods that are looked at; a kubelet runs 110 pods by default
CONTAINERS_LIMIT = 256  # of one pod

# names of namespaces, pods and containers (RFC 1123), and uids. Another process than the kubelet can give a folder any
# name.
_NAME = re.compile(r"[a-z0-9.-]{1,253}")
_FOLDER = re.compile(rf"({_NAME.pattern})_({_NAME.pattern})_[a-zA-Z0-9.-]{{1,253}}")

Place = tuple[str, str]  # folders of a pod and of one of its containers


class LineHit(msgspec.Struct):
    """Lines of one pod that match one pattern; ``text`` and ``at`` (epoch seconds) of the last one."""

    pod: str
    hit: PatternHit
    text: str
    at: float
    count: int = 1


class Notice(msgspec.Struct, frozen=True):
    """Something that could not be read. pod: NAMESPACE/NAME; empty: several."""

    pod: str
    reason: str
    message: str


class Turn(msgspec.Struct):
    """at_end: all files have been read to their end; new_pods: there are folders of pods that were not there before.

    behind: epoch seconds up to which every log has been read if not at_end; 0: unknown
    trouble: why the logs of some pods cannot be read at all; cpu_s: processor time of this turn
    step_times: of all ranks so far
    """

    hits: dict[tuple[str, str], LineHit] = {}
    notices: list[Notice] = []
    at_end: bool = True
    behind: float = 0.0
    new_pods: bool = False
    trouble: str = ""
    cpu_s: float = 0.0
    step_times: tuple[StepTotals, ...] = ()


class ReadCounts(msgspec.Struct):
    """Numbers since the start, for metrics.

    lines: read; malformed: not in the format; overlong: truncated; skipped_bytes: left out in a flood;
    refused: files that are neither folders nor regular files
    steps_malformed, steps_left_out: lines with step times that are not understood, or are beyond the limit of ranks
    """

    lines: int = 0
    malformed: int = 0
    overlong: int = 0
    skipped_bytes: int = 0
    refused: int = 0
    steps_malformed: int = 0
    steps_left_out: int = 0


class _Followed:
    """since: epoch seconds; lines up to then have been judged."""

    def __init__(self, opener: LogOpener, place: Place, since: float) -> None:
        self.log = ContainerLog(opener, place, since)
        self.lines = CriLines()
        self.since = since


class LogReader:
    def __init__(
        self,
        opener: LogOpener,
        patterns: Patterns,
        *,
        files: int,
        namespaces: tuple[str, ...],
        since: float,
        steps: StepTimes | None = None,
    ) -> None:
        """since: epoch seconds; earlier lines are passed over. steps: None: step times are not read"""
        self.counts = ReadCounts()
        self._opener = opener
        self._patterns = patterns
        self._steps = steps
        self._files = files
        self._namespaces = namespaces
        self._since = since
        self._followed: dict[Place, _Followed] = {}
        self._known: set[str] = set()
        self._until: dict[Place, float] = {}  # time of the last line, for a log that is opened again

    def close(self) -> None:
        for followed in self._followed.values():
            followed.log.close()
        self._followed.clear()

    def turn(self, pods: Collection[str] | None) -> Turn:
        """Read on. pods: NAMESPACE/NAME of the pods to read; None: all. Raises OSError if there is no log folder."""
        began = time.thread_time()
        turn = Turn()
        places = self._places(pods, turn)
        for place in self._followed.keys() - set(places):
            self._followed.pop(place).log.close()
        pending, left = places, TURN_BYTES
        while pending and left > 0:
            more = []
            for place in pending:
                piece = self._read(place, turn)
                left -= piece.size
                if piece.more:
                    more.append(place)
            pending = more
        turn.at_end = not pending
        turn.behind = min((self._until.get(place, self._since) for place in pending), default=0.0)
        if self._steps is not None:
            self._steps.keep({pod_of(folder) for folder, _ in places})
            turn.step_times = self._steps.totals()
            self.counts.steps_malformed, self.counts.steps_left_out = self._steps.malformed, self._steps.left_out
        turn.cpu_s = time.thread_time() - began
        return turn

    # --- which logs

    def _places(self, pods: Collection[str] | None, turn: Turn) -> list[Place]:
        """The containers to follow. The first containers of all pods come before the second ones, so that a pod with
        many containers does not displace other pods."""
        with listed(self._opener, ()) as entries:
            folders = sorted(entry.name for entry in islice(entries, PODS_LIMIT))
        turn.new_pods = not self._known.issuperset(folders)
        self._known = set(folders)
        self._until = {place: at for place, at in self._until.items() if place[0] in self._known}
        by_pod = [self._containers(folder, turn) for folder in folders if self._concerns(folder, pods)]
        places = [place for place in chain.from_iterable(zip_longest(*by_pod)) if place is not None]
        if len(places) > self._files:
            left_out = sorted({pod_of(folder) for folder, _ in places[self._files :]})
            count = len(places) - self._files
            message = f"{count} container logs are not read (limit {self._files}), among them of pod {left_out[0]}"
            turn.notices.append(Notice("", "PodLogsNotRead", message))
        return places[: self._files]

    def _concerns(self, folder: str, pods: Collection[str] | None) -> bool:
        pod = pod_of(folder)
        if not pod or (pods is not None and pod not in pods):
            return False
        namespace = pod.partition("/")[0]
        return not self._namespaces or any(fnmatchcase(namespace, glob) for glob in self._namespaces)

    def _containers(self, folder: str, turn: Turn) -> list[Place]:
        try:
            with listed(self._opener, (folder,)) as entries:
                found = (entry.name for entry in islice(entries, CONTAINERS_LIMIT))
                return [(folder, name) for name in sorted(filter(_NAME.fullmatch, found))]
        except OSError as error:
            self._note(error, folder, turn)
        return []

    # --- one log

    def _read(self, place: Place, turn: Turn) -> Piece:
        followed = self._followed.get(place)
        if followed is None:
            since = self._until.get(place, self._since)
            followed = self._followed[place] = _Followed(self._opener, place, since)
        try:
            piece = followed.log.read()
        except OSError as error:
            self._followed.pop(place).log.close()
            self._note(error, place[0], turn)
            return Piece([])
        pod = pod_of(place[0])
        self.counts.overlong += piece.overlong
        if piece.skipped or piece.missed:
            followed.lines.forget()
            self.counts.skipped_bytes += piece.skipped
            what = f"{piece.skipped} bytes" if piece.skipped else f"{piece.missed} compressed files"
            message = f"{what} of the log of container {place[1]} were skipped: written faster than read"
            turn.notices.append(Notice(pod, "PodLogSkipped", message))
        after = followed.since if piece.old else 0.0
        for at, text in self._lines(followed.lines, piece):
            self._match(pod, at, text, turn, after)
        if piece.lines and (last := epoch_seconds(piece.lines[-1][:TIME_BYTES].partition(b" ")[0])) is not None:
            self._until[place] = max(last, self._until.get(place, 0.0))
        return piece

    def _lines(self, lines: CriLines, piece: Piece) -> Iterator[tuple[bytes, bytes]]:
        overlong = lines.overlong
        self.counts.lines += len(piece.lines)
        for raw in piece.lines:
            try:
                line = lines.take(raw)
            except MalformedLine:
                self.counts.malformed += 1
                continue
            if line is not None and self._may_match(line[1]):
                yield line
        self.counts.overlong += lines.overlong - overlong

    def _may_match(self, raw: bytes) -> bool:
        return (self._steps is not None and self._steps.may_match(raw)) or self._patterns.may_match(raw)

    def _match(self, pod: str, at: bytes, raw: bytes, turn: Turn, after: float) -> None:
        seconds = epoch_seconds(at)
        if seconds is None:
            self.counts.malformed += 1
            return
        if seconds <= after:
            return
        text = raw.decode("utf-8", "replace")
        if self._steps is not None:
            self._steps.take(pod, text)
        for hit in self._patterns.hits(text):
            found = turn.hits.get((pod, hit.reason))
            if found is None:
                turn.hits[pod, hit.reason] = LineHit(pod, hit, text, seconds)
            else:
                found.text, found.at, found.count = text, max(found.at, seconds), found.count + 1

    def _note(self, error: OSError, folder: str, turn: Turn) -> None:
        """The log, or the folder of a pod, cannot be read."""
        pod = pod_of(folder)
        if isinstance(error, NotALog):
            self.counts.refused += 1
            inner = str(error.filename).partition("/")[2]
            message = f"{f'the log {inner}' if inner else 'the log folder'} {error.strerror}, so it is not read"
            turn.notices.append(Notice(pod, "PodLogRefused", message))
        elif not isinstance(error, FileNotFoundError):  # the pod has been deleted
            turn.trouble = f"{self._opener.folder / folder}: {error.strerror or os.strerror(error.errno or 0)}"


def pod_of(folder: str) -> str:
    """NAMESPACE/NAME from the name of a pod's folder, NAMESPACE_NAME_UID; empty for a name that no kubelet gives."""
    found = _FOLDER.fullmatch(folder)
    return f"{found[1]}/{found[2]}" if found else ""
