"""Judges a whole run by what the API server and V-IPU have recorded, never by what Muster says of itself.

A write that was stored in the moment in which the API server was killed is not in its audit log. Two things make up for
it: the observer's own lists of Nodes after each such moment, and the resourceVersion that Muster's PATCHes name, which
is known to be another's if the log does not have it. Between the two a Node counts as unknown, for neither side.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any

from tests.chaos.audit_records import Write, in_order

FAULTY = "muster.dev/faulty"
OURS = "muster.dev/"
ACCOUNTS = "system:serviceaccount:muster:muster-"
TAINTER = f"{ACCOUNTS}tainter"
HARDWARE = ("reset", "reboot", "replace", "contact")
AFTER_BOOT = ("reset", "reboot")  # classes whose faults a reboot closes, by the policy's defaults
MEASURED = ("PASS", "WARN", "FAIL")  # a check that is UNKNOWN after the boot proves nothing
# A watch may be mute for as long as an injection lasts, and be followed by a list; a leader that was stopped has a
# request in hand that was decided on before.
STALE_S = 60.0
FAR = "9000-01-01T00:00:00.000000Z"

Object = dict[str, Any]
FaultKey = tuple[str, str, str]  # check, component, reason


class Rule(StrEnum):
    """What must never be; each is found by tests/chaos/test_observer.py."""

    TAINTED_IN_HEALTH = "a node was tainted that had no fault"
    RELEASED_WITH_FAULT = "a node was released whose fault nothing had closed"
    OVER_BUDGET = "more nodes of a pool were tainted than its budget allows"
    FOREIGN_CHANGED = "Muster changed what is not its own on a Node"
    LOST_TAINT = "at rest, a node with a fault has no taint though the budget has room"
    LEFT_TAINT = "at rest, a node has a taint and no fault"
    FOREIGN_LOST = "at rest, a node has not the taints that people left there"
    LOST_LINE = "at rest, a line of a kernel log that asks for a taint has none"
    LABEL_APART = "a node has the label without the taint, or the taint without the label"
    LEAKED = "at rest, a partition belongs to no job"
    MISSING = "at rest, a job's partition does not exist"
    DOUBLED = "V-IPU made a partition that was there"
    TAKEN = "a partition was removed while a pod of its job was there"
    WRONG_END = "at rest, a job is not in its right state"
    UNREACHABLE_FAILS = "an agent called a node faulty that never had a fault"
    RESTLESS = "something was written after the time within which all must be at rest"


@dataclass(frozen=True, order=True)
class Violation:
    rule: Rule
    what: str
    at: str = ""

    def __str__(self) -> str:
        return f"{self.at} {self.rule.name}: {self.what} ({self.rule})".strip()


@dataclass(frozen=True)
class NodeState:
    """What one write made of a Node. foreign: all that is not Muster's: taints, labels, whether it is cordoned."""

    version: int
    tainted: bool
    labelled: bool
    pool: str
    foreign_taints: frozenset[tuple[str, str, str]]
    foreign: tuple[object, ...]


@dataclass(frozen=True)
class _Open:
    occurrence: int
    boot: str
    fault_class: str
    at: str
    version: int


@dataclass
class _Faults:
    """Of one node, as its NodeHealth told. closed_at: when one was closed last. told: times of all its statuses.
    cleared: occurrences by check and component, undone: those of them that a deleted CRD took away, read or not.
    forgotten: open ones that it took away and that have not been told since; unsure: checks that are UNKNOWN now."""

    open: dict[FaultKey, _Open] = field(default_factory=dict)
    cleared: dict[tuple[str, str], int] = field(default_factory=dict)
    undone: dict[tuple[str, str], int] = field(default_factory=dict)
    noted_at: str = ""
    forgotten: set[FaultKey] = field(default_factory=set)
    unsure: set[str] = field(default_factory=set)
    closed_at: str = ""
    told: list[str] = field(default_factory=list)

    def note(self, write: Write, erased: Iterable[str]) -> None:
        """erased: when the CRD was deleted."""
        body = write.result or {}
        if any(self.noted_at < at < write.at for at in erased):
            self.undone |= self.cleared
            self.cleared = {}
            self.forgotten |= self.open.keys()
        self.noted_at = write.at
        for entry in body.get("spec", {}).get("clear") or ():
            place = (entry["check"], entry["component"])
            self.cleared[place] = max(self.cleared.get(place, 0), entry["occurrence"])
        status = body.get("status") or {}
        if status:
            self.told.append(write.at)
            self.unsure = {each["name"] for each in status.get("checks") or () if each["verdict"] == "UNKNOWN"}
        reported: dict[FaultKey, _Open] = {}
        for check in status.get("checks") or ():
            for found in check.get("findings") or ():
                if found["verdict"] == "FAIL" and found.get("class") in HARDWARE:
                    key = (check["name"], found["component"], found["reason"])
                    reported[key] = _Open(
                        found.get("occurrence", 1), status.get("bootID", ""), found["class"], write.at, write.version
                    )
        self.forgotten -= reported.keys()
        for key, found in reported.items():
            known = self.open.get(key)
            if known is None or found.occurrence > known.occurrence:
                self.open[key] = found
        for key, known in list(self.open.items()):
            if self._is_closed(key, known, status, reported):
                del self.open[key]
                self.closed_at = write.at

    def _is_closed(self, key: FaultKey, known: _Open, status: Object, reported: Mapping[FaultKey, _Open]) -> bool:
        check, component, reason = key
        if known.occurrence <= _told(self.cleared, key):
            return True
        if key in reported or not status.get("bootID"):
            return False
        verdicts = {each["verdict"] for each in status["checks"] if each["name"] == check}
        if known.boot != status["bootID"] and known.fault_class in AFTER_BOOT and verdicts & set(MEASURED):
            return True
        over = [each for found in status["checks"] if found["name"] == check for each in found.get("cleared") or ()]
        return any(
            each["component"] == component and each["reason"] == reason and each["occurrence"] >= known.occurrence
            for each in over
        )

    @property
    def may_be_untainted(self) -> bool:
        """Whether all that is open was cleared, and told anew after the CRD was deleted: the tainter may have read the
        clear before. Or it was told only before, perhaps to nobody, and its check cannot tell now."""
        return all(
            each.occurrence <= _told(self.undone, key) or (key in self.forgotten and key[0] in self.unsure)
            for key, each in self.open.items()
        )


def _told(cleared: Mapping[tuple[str, str], int], key: FaultKey) -> int:
    return max(cleared.get((key[0], place), 0) for place in ("*", key[1]))


@dataclass(frozen=True)
class VipuCall:
    """One request that reached V-IPU. status: of its answer, 0: it had none. at: as :attr:`Write.at`."""

    at: str
    method: str
    target: str
    name: str
    status: int


@dataclass(frozen=True)
class FinalState:
    """What the observer read itself when all was at rest, and what the run's author left behind.

    nodes: all Nodes; foreign_taints: by node, what people left; jobs: ``(launcherStatus, currentReplicas)`` by name;
    right_ends: what they must be, a name that is missing must not exist; partitions: the simulator's;
    right_partitions: those of the jobs that still hold them; optional: those that a job that has ended may still hold;
    broken: nodes of real agents whose kernel log says so; well: those whose kernel log never said so; called_faulty:
    nodes that an agent called FAIL, and when
    """

    nodes: Sequence[Object]
    foreign_taints: Mapping[str, frozenset[tuple[str, str, str]]]
    jobs: Mapping[str, tuple[str, int]]
    right_ends: Mapping[str, tuple[str, int]]
    partitions: Sequence[str]
    right_partitions: frozenset[str]
    optional: frozenset[str] = frozenset()
    broken: frozenset[str] = frozenset()
    well: frozenset[str] = frozenset()
    called_faulty: Sequence[tuple[str, str]] = ()


@dataclass(frozen=True)
class Observed:
    """snapshots: Nodes that the observer listed itself. budgets: by pool, of those that have one."""

    writes: Sequence[Write]
    snapshots: Sequence[Object]
    calls: Sequence[VipuCall]
    budgets: Mapping[str, int]
    pool_label: str
    final: FinalState
    rest_by: str


def judge(observed: Observed) -> list[Violation]:
    """Everything that must not be; empty if all is well."""
    fleet = _Fleet(observed)
    fleet.replay()
    return sorted(
        {*fleet.violations, *fleet.at_rest(), *_partitions(observed), *_jobs(observed.final), *_restless(observed)}
    )


def open_nodes(writes: Iterable[Write]) -> set[str]:
    """Nodes that have a fault which asks for a taint, as far as these writes tell."""
    faults: dict[str, _Faults] = {}
    for write in in_order(writes, ("nodehealths", "nodehealths/status")):
        faults.setdefault(write.name, _Faults()).note(write)
    return {name for name, each in faults.items() if each.open}


def node_state(body: Object, pool_label: str) -> NodeState:
    metadata, spec = body["metadata"], body.get("spec", {})
    labels: dict[str, str] = metadata.get("labels") or {}
    taints = [(each["key"], each.get("value", ""), each["effect"]) for each in spec.get("taints") or ()]
    foreign_taints = frozenset(each for each in taints if not each[0].startswith(OURS))
    annotations = metadata.get("annotations") or {}
    return NodeState(
        int(metadata["resourceVersion"]),
        any(key == FAULTY for key, _, _ in taints),
        labels.get(FAULTY) == "true",
        labels.get(pool_label, ""),
        foreign_taints,
        (
            foreign_taints,
            tuple(sorted(item for item in labels.items() if not item[0].startswith(OURS))),
            tuple(sorted(key for key in annotations if not key.startswith(OURS))),
            bool(spec.get("unschedulable")),
        ),
    )


class _Fleet:
    """Replays all writes of Nodes and NodeHealths, one after the other."""

    def __init__(self, observed: Observed) -> None:
        self._observed = observed
        self._nodes: dict[str, NodeState | None] = {}  # None: unknown
        self._faults: dict[str, _Faults] = {}
        self._tainted_at: dict[str, int] = {}  # the version that set the taint
        self._tainted: Counter[str] = Counter()  # by pool
        self._erased = [
            write.at
            for write in observed.writes
            if write.resource == "customresourcedefinitions" and write.verb == "delete"
        ]
        self.violations: list[Violation] = []

    def replay(self) -> None:
        for write in self._all():
            if write.resource.startswith("nodehealths"):
                self._faults.setdefault(write.name, _Faults()).note(write, self._erased)
            elif write.verb == "unknown":
                self._enter(write.name, None)
            else:
                self._node(write)

    def _all(self) -> list[Write]:
        """With what the log does not have: versions that a PATCH names, and what the observer's lists show."""
        resources = ("nodes", "nodes/status", "nodehealths", "nodehealths/status")
        writes = in_order(self._observed.writes, resources)
        known = {(write.name, write.version) for write in writes if write.resource.startswith("nodes")}
        more = []
        for body in self._observed.snapshots:
            name, version = body["metadata"]["name"], int(body["metadata"]["resourceVersion"])
            if (name, version) not in known:
                known.add((name, version))
                more.append(Write("", "", "seen", "nodes", "", name, version, 0, body))
        for write in writes:
            if write.resource.startswith("nodes") and write.based_on and (write.name, write.based_on) not in known:
                known.add((write.name, write.based_on))
                more.append(Write(write.at, "", "unknown", "nodes", "", write.name, write.based_on))
        return sorted([*writes, *more], key=lambda write: write.version)

    def _node(self, write: Write) -> None:
        assert write.result is not None
        before, after = self._nodes.get(write.name), node_state(write.result, self._observed.pool_label)
        if write.user == TAINTER and before is not None:
            if before.foreign != after.foreign:
                self._wrong(Rule.FOREIGN_CHANGED, write, f"{write.name}: {before.foreign} -> {after.foreign}")
            if after.tainted and not before.tainted:
                self._judge_taint(write)
            if before.tainted and not after.tainted:
                self._judge_release(write)
        if write.user == TAINTER and after.tainted != after.labelled:
            self._wrong(Rule.LABEL_APART, write, write.name)
        if after.tainted and not (before is not None and before.tainted):
            self._tainted_at[write.name] = write.version
        self._enter(write.name, after)
        budget = self._observed.budgets.get(after.pool)
        if budget is not None and after.tainted and self._tainted[after.pool] > budget:
            self._wrong(Rule.OVER_BUDGET, write, f"{after.pool}: {self._tainted[after.pool]} of {budget}: {write.name}")

    def _enter(self, name: str, after: NodeState | None) -> None:
        before = self._nodes.get(name)
        self._nodes[name] = after
        for state, change in ((before, -1), (after, 1)):
            if state is not None and state.tainted:
                self._tainted[state.pool] += change

    def _judge_taint(self, write: Write) -> None:
        faults = self._faults.get(write.name, _Faults())
        if not faults.open and not (faults.closed_at and later(self._evident_since(faults), STALE_S) >= write.at):
            self._wrong(Rule.TAINTED_IN_HEALTH, write, write.name)

    def _evident_since(self, faults: _Faults) -> str:
        """Since when it can be seen that the last fault is closed: with the CRD, what nobody has read yet is deleted,
        until the agent tells it anew. Later than everything, if it has not."""
        erased = [at for at in self._erased if at > faults.closed_at]
        if not erased:
            return faults.closed_at
        return next((at for at in faults.told if at > erased[-1]), FAR)

    def _judge_release(self, write: Write) -> None:
        set_at = self._tainted_at.get(write.name, 0)
        for key, each in self._faults.get(write.name, _Faults()).open.items():
            if each.version < set_at or later(each.at, STALE_S) < write.at:
                self._wrong(Rule.RELEASED_WITH_FAULT, write, f"{write.name}: {'/'.join(key)} of {each.at}")

    def _wrong(self, rule: Rule, write: Write, what: str) -> None:
        self.violations.append(Violation(rule, what, write.at))

    def at_rest(self) -> Iterable[Violation]:
        final, budgets = self._observed.final, self._observed.budgets
        states = {body["metadata"]["name"]: node_state(body, self._observed.pool_label) for body in final.nodes}
        faulty = {name for name, each in self._faults.items() if each.open and name in states}
        tainted = {name for name, state in states.items() if state.tainted}
        used = Counter(states[name].pool for name in tainted)
        for name in sorted(tainted - faulty):
            yield Violation(Rule.LEFT_TAINT, name)
        for name in sorted(faulty - tainted):
            if self._faults[name].may_be_untainted:
                continue
            budget = budgets.get(states[name].pool)
            if budget is None or used[states[name].pool] < budget:
                yield Violation(Rule.LOST_TAINT, f"{name}: {sorted(self._faults[name].open)}")
        for name, at in final.called_faulty:
            if name in final.well:
                yield Violation(Rule.UNREACHABLE_FAILS, name, at)
        for name in sorted(final.broken - faulty):
            yield Violation(Rule.LOST_LINE, name)
        for name, state in sorted(states.items()):
            if state.foreign_taints != final.foreign_taints.get(name, frozenset()):
                yield Violation(Rule.FOREIGN_LOST, f"{name}: {sorted(state.foreign_taints)}")
            if state.tainted != state.labelled:
                yield Violation(Rule.LABEL_APART, name)


def _partitions(observed: Observed) -> Iterable[Violation]:
    final = observed.final
    for name in sorted(set(final.partitions) - final.right_partitions - final.optional):
        yield Violation(Rule.LEAKED, name)
    for name in sorted(final.right_partitions - set(final.partitions)):
        yield Violation(Rule.MISSING, name)
    there: set[str] = set()
    for call in observed.calls:
        if call.method == "POST" and call.target == "/partitions" and call.status == 202:
            if call.name in there:
                yield Violation(Rule.DOUBLED, call.name, call.at)
            there.add(call.name)
        elif call.method == "DELETE":
            there.discard(call.name)  # one that has no answer may have been carried out
            if call.status == 202:
                for pod in _pods_there(observed.writes, call):
                    yield Violation(Rule.TAKEN, f"{call.name}: {pod}", call.at)


def _pods_there(writes: Sequence[Write], call: VipuCall) -> list[str]:
    """Worker pods of the partition's job that were made, and not deleted before the call. Names: p-JOB-NAMESPACE-N."""
    job, namespace, _ = call.name.removeprefix("p-").rsplit("-", 2)
    there: dict[str, bool] = {}
    for write in writes:
        worker = write.resource == "pods" and write.namespace == namespace and write.name.startswith(f"{job}-worker-")
        if worker and write.verb in ("create", "delete") and write.at < call.at:
            there[write.name] = write.verb == "create"
    return sorted(name for name, is_there in there.items() if is_there)


def _jobs(final: FinalState) -> Iterable[Violation]:
    for name in sorted(final.jobs.keys() | final.right_ends.keys()):
        found, right = final.jobs.get(name), final.right_ends.get(name)
        if found != right:
            yield Violation(Rule.WRONG_END, f"{name}: {found}, not {right}")


def _restless(observed: Observed) -> Iterable[Violation]:
    last = last_change(observed.writes)
    if last is not None and last.at > observed.rest_by:
        yield Violation(Rule.RESTLESS, f"{last.user} {last.verb} {last.resource} {last.name}", last.at)


def last_change(writes: Sequence[Write]) -> Write | None:
    """The last write of one of Muster's accounts that is neither a Lease nor a question (a review, a token)."""
    return max(
        (
            write
            for write in writes
            if write.user.startswith(ACCOUNTS)
            and write.resource not in ("leases", "serviceaccounts/token")
            and not write.resource.endswith("reviews")
        ),
        key=lambda write: write.at,
        default=None,
    )


def stamp(moment: datetime) -> str:
    """As the audit log writes times."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def later(at: str, seconds: float) -> str:
    return stamp(datetime.fromisoformat(at) + timedelta(seconds=seconds))
