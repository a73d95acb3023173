"""Adds up the step times that programs print, as counters: completed steps, their seconds, and their work.

The counter of steps is the program's own step number plus one, not the number of lines, so ranks on different nodes
stay comparable whenever their agents began to read, and lines that were skipped leave no gap.
"""

from collections.abc import Collection

from muster_checks.base.declaration import StepTotals
from muster_checks.containerlog.step_line import (
    LINE_BYTES,
    MARK,
    MalformedStep,
    StepLine,
    job_of_pod,
    parse_step,
    read_step,
)
from muster_checks.dmesg.catalogue.match import Pattern

RANKS_LIMIT = 512  # of a node: 16 accelerators, and jobs that restart under other names
RANKS_OF_POD = 64


class _Rank:
    def __init__(self, line: StepLine) -> None:
        self.begin(line)

    def begin(self, line: StepLine) -> None:
        self.last = line.step
        self.seconds = line.seconds
        self.work = line.work
        self.lower: StepLine | None = None
        self.gpu, self.stage = line.gpu, line.stage

    def take(self, line: StepLine) -> None:
        """A step below the last one is late, or the first of a program that began again: the next line tells."""
        if line.step > self.last:
            self.seconds += line.seconds * (line.step - self.last)
            if self.work is not None:
                self.work = None if line.work is None else self.work + line.work * (line.step - self.last)
            self.last, self.lower = line.step, None
        elif self.lower is not None and self.lower.step < line.step <= self.last:
            self.begin(self.lower)
            self.take(line)
        elif line.step < self.last:
            self.lower = line


class StepTimes:
    """The ranks of a node. pattern: RE2 with the groups of :mod:`.step_line`; empty: only ``muster_step{…}``."""

    def __init__(self, pattern: str = "") -> None:
        self._pattern = Pattern(pattern) if pattern else None
        self._ranks: dict[tuple[str, str, int], _Rank] = {}  # by pod (NAMESPACE/NAME), job and rank
        self.malformed = 0
        self.left_out = 0

    def may_match(self, raw: bytes) -> bool:
        return MARK in raw or (self._pattern is not None and self._pattern.search(raw[:LINE_BYTES]) is not None)

    def take(self, pod: str, text: str) -> None:
        """pod: NAMESPACE/NAME, by the kubelet. Counts a line that is malformed, or beyond the limits."""
        try:
            line = self._read(text)
        except MalformedStep:
            self.malformed += 1
            return
        if line is None:
            return
        key = pod, line.job or job_of_pod(pod.partition("/")[2]), line.rank
        rank = self._ranks.get(key)
        if rank is not None:
            rank.take(line)
        elif len(self._ranks) < RANKS_LIMIT and sum(each[0] == pod for each in self._ranks) < RANKS_OF_POD:
            self._ranks[key] = _Rank(line)
        else:
            self.left_out += 1

    def _read(self, text: str) -> StepLine | None:
        at = text.find(MARK.decode())
        if at >= 0:
            return parse_step(text[at : at + LINE_BYTES])
        found = None if self._pattern is None else self._pattern.search(text[:LINE_BYTES].encode("utf-8", "replace"))
        return None if found is None else read_step(found)

    def keep(self, pods: Collection[str]) -> None:
        """Forget the ranks of pods whose logs are no longer read."""
        if any(pod not in pods for pod, _, _ in self._ranks):
            self._ranks = {key: rank for key, rank in self._ranks.items() if key[0] in pods}

    def totals(self) -> tuple[StepTotals, ...]:
        return tuple(
            StepTotals(namespace, name, job, rank, each.gpu, each.last + 1, each.seconds, each.stage, each.work)
            for (pod, job, rank), each in self._ranks.items()
            for namespace, _, name in [pod.partition("/")]
        )
