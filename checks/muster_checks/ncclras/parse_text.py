"""Parses the text output of RAS (NCCL 2.24 and later).

Sources: NCCL's user guide, section RAS, "Sample Output", and the formats in src/ras/client_support.cc. The guide says
that the text varies between releases, so lines that are not known are passed over.

    #0-0 (cf264af53edbe986) INCOMPLETE
      Missing communicator data from 1 rank
      Rank 21 -- GPU 5 managed by process 3487984 on node 172.16.64.213
"""

import re

from muster_checks.ncclras.report import (
    COMMUNICATORS_LIMIT,
    RANKS_LIMIT,
    UNKNOWN_HOST,
    MalformedReport,
    RasCommunicator,
    RasRank,
    host_of,
)

_SECTION = re.compile(r"(INCOMPLETE|DEAD|TIMEOUT)\s*")
_COMMUNICATOR = re.compile(r"#\d{1,9}-\d{1,9} \(([0-9a-f]{1,16})\) (INCOMPLETE|ERROR|MISMATCH)\s*")
_PROCESS = re.compile(r"\s+Process (\d{1,9}) on node (\S{1,64}) managing GPUs? (\d{1,3})")
_RANK = re.compile(
    r"\s+Rank (\d{1,9})(?: has launched up to operation (\d{1,19})| (has not launched any operations))? -- "
    r"(?:GPU (\d{1,3})(?: \(NVML \d{1,3}\))? managed by process (\d{1,9}) on node (\S{1,64})|\[)"
)
_MISSING = re.compile(r"\s+The missing ranks?: ([\d, ]{1,200})")
_GROUP = re.compile(r"\s+(\d{1,9}) ranks have (?:launched up to operation (\d{1,19})|(not launched any operations))")
_COUNTS = re.compile(r"\s+Communicator ranks have different \S{1,40} operation counts")
_STATUS = re.compile(r"\s+Communicator ranks have different status")
_SUMMARY = re.compile(r"\s*\d+\s+\d+\s+\d+\s+[\d-]+\s+(\d{1,9})\s+\d+\s+[A-Z]+\s+[A-Z]+\s*")


class _Block:
    """What is said about one communicator. counts: launched operations and their ranks, of the current sort."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.silent: dict[int, RasRank] = {}
        self.behind: dict[int, RasRank] = {}
        self.progress = 0.0
        self.groups: list[tuple[int, int]] = []  # (operation, number of ranks)
        self.ranks: list[tuple[int, RasRank]] = []

    def end_counts(self) -> None:
        if self.groups:
            most, by = max(self.groups, key=lambda group: group[1])
            total = sum(number for _, number in self.groups)
            if 2 * by > total:
                self.behind |= {rank.rank: rank for operation, rank in self.ranks if operation < most}
        self.groups, self.ranks = [], []


def parse_text(text: bytes) -> list[RasCommunicator]:
    """The communicators that the answer names: those in order are not named. Raises MalformedReport."""
    lines = text.decode("utf-8", "replace").splitlines()
    if not any(line.startswith(("Communicators...", "NCCL version ", "#")) for line in lines):
        raise MalformedReport("not RAS's text: no line begins with Communicators...")
    blocks: dict[str, _Block] = {}
    processes: list[tuple[int, str, int]] = []  # pid, host, GPU: of those that do not answer
    unplaced: list[tuple[_Block, int]] = []
    size = 0
    block: _Block | None = None
    kind = ""
    for line in lines:
        if found := _COMMUNICATOR.fullmatch(line):
            if block is not None:
                block.end_counts()
            name, kind = found[1].zfill(16), found[2]
            block = blocks.setdefault(name, _Block(name))
            if len(blocks) > COMMUNICATORS_LIMIT:
                raise MalformedReport(f"more than {COMMUNICATORS_LIMIT} communicators")
        elif found := _SECTION.fullmatch(line):
            block, kind = None, found[1]
        elif block is None:
            if (found := _PROCESS.match(line)) and kind in ("INCOMPLETE", "DEAD"):
                processes.append((int(found[1]), host_of(found[2]), int(found[3])))
            elif found := _SUMMARY.fullmatch(line):
                size = max(size, int(found[1]))
        elif kind == "INCOMPLETE":
            if found := _RANK.match(line):
                block.silent[int(found[1])] = _rank(found)
            elif found := _MISSING.match(line):
                unplaced += [(block, int(number)) for number in found[1].replace(",", " ").split()]
        elif kind == "MISMATCH":
            _mismatch(block, line)
        if sum(len(each.ranks) for each in blocks.values()) + len(processes) + len(unplaced) > RANKS_LIMIT:
            raise MalformedReport(f"more than {RANKS_LIMIT} ranks")
    if block is not None:
        block.end_counts()
    places = sorted(set(processes))
    for owner, number in unplaced:
        # the guide's form names the ranks and the processes, but not which is which
        pid, host, gpu = places[0] if len(places) == len(unplaced) == 1 else (0, UNKNOWN_HOST, -1)
        owner.silent.setdefault(number, RasRank(number, host, gpu, pid))
    return [
        RasCommunicator(
            name=each.name,
            size=size,
            silent=tuple(sorted(each.silent.values())),
            behind=tuple(sorted(each.behind.values())),
            progress=each.progress,
        )
        for each in blocks.values()
    ]


def _mismatch(block: _Block, line: str) -> None:
    if _COUNTS.match(line) or _STATUS.match(line):
        block.end_counts()
    elif found := _GROUP.match(line):
        operation = int(found[2] or 0)
        block.groups.append((operation, int(found[1])))
        block.progress += operation * int(found[1])
    elif found := _RANK.match(line):
        if found[2] or found[3]:  # a group of one
            operation = int(found[2] or 0)
            block.groups.append((operation, 1))
            block.progress += operation
            block.ranks.append((operation, _rank(found)))
        elif block.groups:
            block.ranks.append((block.groups[-1][0], _rank(found)))


def _rank(found: re.Match[str]) -> RasRank:
    if found[6] is None:
        return RasRank(int(found[1]))
    return RasRank(int(found[1]), host_of(found[6]), int(found[4]), int(found[5]))
