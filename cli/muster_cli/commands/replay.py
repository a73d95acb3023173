"""`muster replay POLICY --log FILE…`: shows what a policy would have tainted, when and for how long."""

import argparse
import json
import os
import sys
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from heapq import merge
from pathlib import Path
from typing import NamedTuple, TypeVar

import msgspec

from muster_checks.dmesg.catalogue.loader import load_catalogue
from muster_checks.dmesg.catalogue.types import Catalogue, CatalogueError
from muster_cli.cluster.node_arguments import node_name
from muster_cli.report.policies.kernel_logs import LogLines, NoKernelLog, SavedKernelLog
from muster_cli.report.policies.replay import LogStatistics, as_document, print_outcome
from muster_cli.usage import UsageError
from muster_kube.api.objects import Metadata, Node
from muster_kube.nodehealth import NodeHealth
from muster_kube.process.command_line import EXIT_USAGE
from muster_tainter.devices.slices.index import SLICES_LIMIT
from muster_tainter.devices.slices.resource_slice import ResourceSlice, slim_slice
from muster_tainter.explain.audit_log_reader import AuditLogReader, BadLine, read_transition
from muster_tainter.explain.replay import PolicyReplay, ReplayOutcome
from muster_tainter.policy.file import PolicyError, load_policy
from muster_tainter.policy.rules import Policy

_LOOK_BYTES = 64 << 10  # of a file, to recognise its format
_LIST_LIMIT_BYTES = 1 << 30
_ListT = TypeVar("_ListT")
_SUFFIXES = (".log", ".txt", ".dmesg", ".kmsg", ".jsonl", ".json", ".1")


class ReplayLog(NamedTuple):
    """A log file. node: the node of a kernel log; None for the log of a tainter, which names the nodes itself."""

    path: Path
    node: str | None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Reads kernel logs as dmesg, journalctl -k and "
        "syslog write them, one file for each node, or the log of a tainter; the format is recognised by the content. "
        "The same files always give the same answer."
    )
    parser.add_argument("policy", metavar="POLICY", type=Path, help="policy file, or - for the built-in policy")
    parser.add_argument(
        "--log",
        metavar="[NODE=]FILE",
        nargs="+",
        action="extend",
        default=[],
        help="log files; without NODE=, the node is the file name without its extensions (.log, .txt, .json, …)",
    )
    parser.add_argument(
        "--nodes",
        metavar="FILE",
        type=Path,
        help="output of kubectl get nodes -o json; pools use the labels of the nodes, and budgets use their number. "
        "Default: the nodes of the logs, without labels",
    )
    parser.add_argument(
        "--slices",
        metavar="FILE",
        type=Path,
        help='output of kubectl get resourceslices -o json. If the policy has "quarantine: rules" in its section '
        "devices, the command then shows which faults keep only their device out of use. Default: none, so each fault "
        "taints its node",
    )
    parser.add_argument(
        "--catalogue", metavar="FILE", type=Path, help="YAML file of your own kernel messages, see docs/kernel-log.md"
    )
    parser.add_argument(
        "--year", metavar="YEAR", type=year, default=1970, help="year of lines without one (old syslog format)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def year(text: str) -> int:
    """For argparse."""
    if not text.isascii() or not text.isdigit() or not 1970 <= int(text) <= 9998:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a year from 1970 on")
    return int(text)


def main(arguments: argparse.Namespace) -> int:
    try:
        policy = load_policy(None if str(arguments.policy) == "-" else arguments.policy)
        catalogue = load_catalogue(arguments.catalogue)
        nodes = _nodes(arguments.nodes) if arguments.nodes is not None else []
        slices = _slices(arguments.slices) if arguments.slices is not None else []
        with assume_utc():
            outcome, read = replay_logs(
                policy, find_sources(arguments.log), nodes, catalogue, year=arguments.year, slices=slices
            )
    except (PolicyError, CatalogueError, UsageError, NoKernelLog) as error:
        print("\n".join(f"muster: {line}" for line in str(error).splitlines()), file=sys.stderr)
        return EXIT_USAGE
    except OSError as error:
        print(f"muster: {error.filename}: {error.strerror or error}", file=sys.stderr)
        return EXIT_USAGE
    if arguments.json:
        print(json.dumps(as_document(outcome, read, policy), indent=2, ensure_ascii=False))
    else:
        print_outcome(outcome, read, policy)
    return 0


@contextmanager
def assume_utc() -> Iterator[None]:
    """Read times without a zone as UTC on any machine, unless $TZ is set."""
    if "TZ" in os.environ:
        yield
        return
    os.environ["TZ"] = "UTC"
    time.tzset()
    try:
        yield
    finally:
        del os.environ["TZ"]
        time.tzset()


def find_sources(words: list[str]) -> list[ReplayLog]:
    """Raises UsageError, OSError."""
    if not words:
        raise UsageError("replay: expected --log FILE…")
    sources, owner = [], dict[str, str]()
    for word in words:
        node, sign, name = word.partition("=")
        path = Path(word)
        if sign and not path.exists():
            path = Path(name)
            try:
                node_name(node)
            except argparse.ArgumentTypeError as error:
                raise UsageError(f"--log {word}: {error}") from None
        else:
            node = ""
        if not node and is_tainter_log(path):
            sources.append(ReplayLog(path, None))
            continue
        node = node or _node_of(path)
        if node in owner:
            raise UsageError(
                f"--log {word}: node {node} already has the log {owner[node]}: expected NODE=FILE, one for each node"
            )
        owner[node] = word
        sources.append(ReplayLog(path, node))
    return sorted(sources, key=lambda source: (source.node or "", str(source.path)))


def _node_of(path: Path) -> str:
    name = path.name
    while (stem := next((name.removesuffix(end) for end in _SUFFIXES if name.endswith(end)), name)) and stem != name:
        name = stem
    try:
        return node_name(name.lower())
    except argparse.ArgumentTypeError:
        raise UsageError(f"--log {path}: the file name is not a valid node name: expected NODE={path}") from None


def is_tainter_log(path: Path) -> bool:
    """Whether it is a regular file with a transition in its first lines. Raises OSError."""
    if not path.is_file():
        with path.open("rb"):  # a pipe can be read only once: take it as a kernel log
            return False
    with path.open("rb") as file:
        head = file.read(_LOOK_BYTES)
    for raw in head.split(b"\n"):
        try:
            if read_transition(raw) is not None:
                return True
        except BadLine:
            continue
    return False


class _NodeList(msgspec.Struct):
    items: tuple[Node, ...]


class _SliceList(msgspec.Struct):
    items: tuple[ResourceSlice, ...]


def _nodes(path: Path) -> list[Node]:
    return list(_read_list("--nodes", path, _NodeList, "nodes").items)


def _slices(path: Path) -> list[ResourceSlice]:
    found = _read_list("--slices", path, _SliceList, "resourceslices").items
    if len(found) > SLICES_LIMIT:
        raise UsageError(f"--slices {path}: {len(found)} ResourceSlices: expected at most {SLICES_LIMIT}")
    return [slim_slice(each) for each in found]


def _read_list(option: str, path: Path, kind: type[_ListT], what: str) -> _ListT:
    """Raises UsageError, OSError."""
    with path.open("rb") as file:
        raw = file.read(_LIST_LIMIT_BYTES)
    try:
        return msgspec.json.decode(raw, type=kind)
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise UsageError(f"{option} {path}: expected the output of kubectl get {what} -o json: {error}") from None


def replay_logs(
    policy: Policy,
    sources: list[ReplayLog],
    nodes: list[Node],
    catalogue: Catalogue,
    *,
    year: int,
    slices: Collection[ResourceSlice] = (),
) -> tuple[ReplayOutcome, LogStatistics]:
    """Raises NoKernelLog, OSError."""
    known = {node.metadata.name for node in nodes}
    logged = [source.node for source in sources if source.node is not None and source.node not in known]
    simulated = PolicyReplay(policy, [*nodes, *(Node(metadata=Metadata(name=name)) for name in logged)], slices)
    kernel = [SavedKernelLog(each.node, each.path, catalogue, year=year) for each in sources if each.node is not None]
    tainters = [_TainterLog(each.path) for each in sources if each.node is None]
    reports = merge(
        *(log.reports() for log in kernel),
        *([_read_transitions(tainters)] if tainters else []),
        key=lambda each: (each[0], each[1].metadata.name),
    )
    for at, health in reports:
        simulated.take(at, health)
    strange = [log for log in kernel if not log.is_log]
    if strange and len(strange) == len(sources):
        raise NoKernelLog(
            "\n".join(
                f"{log.path}: neither a kernel log nor the log of a tainter: no line of either" for log in strange
            )
        )
    outcome = simulated.finish(max((log.end for log in kernel), default=0.0))
    lines = [*(log.lines for log in kernel), *(log.lines for log in tainters)]
    return outcome, LogStatistics(
        files=len(sources),
        lines=sum(each.count for each in lines),
        malformed=sum(log.malformed for log in kernel) + sum(log.malformed for log in tainters),
        overlong=sum(each.overlong for each in lines),
        undated=tuple(log.node for log in kernel if log.undated),
        strange=tuple(str(log.path) for log in strange),
        labelled=bool(nodes),
        slices=len(slices),
    )


class _TainterLog:
    def __init__(self, path: Path) -> None:
        self.lines = LogLines(path)
        self.malformed = 0

    def transitions(self) -> Iterator[dict[str, object]]:
        for raw in self.lines:
            try:
                fields = read_transition(raw)
            except BadLine:
                self.malformed += 1
                continue
            if fields is not None:
                yield fields


def _read_transitions(tainters: list[_TainterLog]) -> Iterator[tuple[float, NodeHealth]]:
    """Merge the logs of several replicas by time."""
    reader = AuditLogReader()
    for fields in merge(
        *(log.transitions() for log in tainters), key=lambda fields: (str(fields["at"]), str(fields["node"]))
    ):
        yield from reader.take(fields)
    yield from reader.finish()
    tainters[0].malformed += reader.bad
