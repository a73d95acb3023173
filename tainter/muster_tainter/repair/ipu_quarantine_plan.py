"""Which IPUs are excluded from new partitions: from the open faults of all nodes to the ConfigMap
``muster-ipu-quarantine``. Pure functions.

The Nodes' annotations are the only state, so every leader computes the same list. The ConfigMap's ``data`` has one key
for each IPU, ``<IPU-Machine>_<board index>`` (characters that a key may not contain become ``-``, and a digest keeps it
unique), and one line of JSON as its value:

    {"ipu": "ipu/10.1.5.7/2", "machine": "10.1.5.7", "index": 2, "since": "2026-01-01T00:00:00Z",
     "faults": [{"node": "host-3", "check": "ipu", "reason": "IpuErrorState", "message": "…"}], "more": 3}

``machine`` is the address as gc-info prints it ("IPU-M host"), ``index`` the tools' "IPU#". ``faults`` has at most four
entries; ``more`` counts the others and is omitted if there are none. Readers use ``machine`` and ``index``, skip
entries that they cannot read, and treat a missing ConfigMap as empty.
"""

import hashlib
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

import msgspec

from muster_checks.base.vocabulary import shorten
from muster_kube.api.objects import Node
from muster_kube.api.times import rfc3339_whole, seconds
from muster_tainter.faults.desired_state import is_managed
from muster_tainter.faults.policy_match import confirmed_at, match_policy
from muster_tainter.faults.record.node_record import read_record
from muster_tainter.policy.rules import Policy

NAME = "muster-ipu-quarantine"
FAULTS_SHOWN = 4
_MESSAGE_LIMIT = 160  # bytes
_NEVER = float("inf")
_IPU = re.compile(r"ipu/([^/]{1,253})/([0-9]{1,4})")
_KEY_LIMIT = 200  # characters of the machine, of a key's 253
_NODE_NAME = re.compile(r"[a-z0-9][-a-z0-9.]{0,252}")
_NO_KEY = re.compile(r"[^A-Za-z0-9.-]")


@dataclass(frozen=True, order=True)
class QuarantineReason:
    """An open fault that requires the quarantine of its IPU. at: from when on, in seconds since the epoch."""

    at: float
    node: str
    check: str
    component: str
    reason: str
    since: str
    message: str


@dataclass(frozen=True)
class NodeQuarantine:
    """The quarantines of one node. unaddressed: components that are not an IPU of an IPU-Machine; look_at: when time
    alone changes it."""

    reasons: tuple[QuarantineReason, ...] = ()
    unaddressed: tuple[str, ...] = ()
    look_at: float = _NEVER


@dataclass(frozen=True)
class QuarantinePlan:
    """data: of the ConfigMap; withheld: components for which there is no room, earliest first."""

    data: Mapping[str, str]
    withheld: tuple[str, ...] = ()


class _EntryFault(msgspec.Struct, frozen=True):
    node: str
    check: str
    reason: str
    message: str


class QuarantineEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    """A value of the ConfigMap, for readers."""

    ipu: str
    machine: str
    index: int
    since: str = ""
    faults: tuple[_EntryFault, ...] = ()
    more: int = 0


def read_quarantine(node: Node, policy: Policy, now: float) -> NodeQuarantine:
    """Resolved faults that are held count: their IPU stays in quarantine, as a taint would."""
    if not is_managed(node):
        return NodeQuarantine()
    reasons, unaddressed, look_at = [], [], _NEVER
    for fault in read_record(node).open:
        want = match_policy(fault, policy)
        if not want.quarantine:
            continue
        if not _IPU.fullmatch(fault.component):
            unaddressed.append(fault.component)
            continue
        at = confirmed_at(fault, want, now)
        if at > now:
            look_at = min(look_at, at)
            continue
        # if the clock was set back, it must not lose its place to later faults
        at = seconds(fault.since) + want.wait_s
        name = node.metadata.name
        reasons.append(
            QuarantineReason(at, name, fault.check, fault.component, fault.reason, fault.since, fault.message)
        )
    return NodeQuarantine(tuple(reasons), tuple(sorted(set(unaddressed))), look_at)


def plan_quarantine(
    reasons: Iterable[QuarantineReason], policy: Policy, *, kept: Collection[str] | None = None
) -> QuarantinePlan:
    """The faults that fit the budget, earliest first, so that later ones never replace earlier ones.

    kept: current keys of the ConfigMap during a pause, when nothing may be added
    """
    by_ipu: dict[str, list[QuarantineReason]] = {}
    for reason in sorted(reasons):
        by_ipu.setdefault(reason.component, []).append(reason)
    data: dict[str, str] = {}
    withheld: list[str] = []
    for component, causes in by_ipu.items():  # earliest first
        key = key_of(component)
        if len(data) >= policy.quarantine.limit or (kept is not None and key not in kept):
            withheld.append(component)
        else:
            data[key] = msgspec.json.encode(_entry(component, causes)).decode()
    return QuarantinePlan(data, tuple(withheld))


def _entry(component: str, causes: list[QuarantineReason]) -> QuarantineEntry:
    match = _IPU.fullmatch(component)
    assert match is not None  # noqa: S101 - only such components become reasons
    return QuarantineEntry(
        ipu=component,
        machine=match[1],
        index=int(match[2]),
        since=rfc3339_whole(min(seconds(each.since) for each in causes)),
        faults=tuple(
            _EntryFault(each.node, each.check, each.reason, shorten(each.message, _MESSAGE_LIMIT))
            for each in causes[:FAULTS_SHOWN]
        ),
        more=max(0, len(causes) - FAULTS_SHOWN),
    )


def entry_nodes(value: str) -> set[str]:
    """The nodes on whose faults an entry is based; none if somebody else has written it."""
    try:
        names = {fault.node for fault in msgspec.json.decode(value, type=QuarantineEntry).faults}
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return set()
    return {name for name in names if _NODE_NAME.fullmatch(name)}


def key_of(component: str) -> str:
    """The key of an IPU's entry. ``component``: ``ipu/<IPU-Machine>/<board index>``."""
    machine, _, index = component.removeprefix("ipu/").rpartition("/")
    key = _NO_KEY.sub("-", machine)
    if key != machine or len(key) > _KEY_LIMIT:
        key = f"{key[:_KEY_LIMIT]}_{hashlib.sha256(machine.encode('utf-8', 'surrogatepass')).hexdigest()[:8]}"
    return f"{key}_{index}"


def data_patch(now: Mapping[str, str], wanted_data: Mapping[str, str]) -> dict[str, str | None]:
    """The merge patch of ``data``; empty if there is nothing to change. Entries of others are removed."""
    patch: dict[str, str | None] = {key: None for key in now if key not in wanted_data}
    return patch | {key: value for key, value in wanted_data.items() if now.get(key) != value}
