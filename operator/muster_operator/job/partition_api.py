"""The interface between the operator and the V-IPU proxy: the REST API of ``/partitions`` and the tracker ConfigMap.

Both are Muster's own, because the original's routes and tracker format are not public.

``PUT /partitions/NAME`` with a :class:`PartitionRequest` creates the partition or takes it over. It is idempotent: the
same attempt returns it unchanged, a higher attempt resets it once. The response is 200 with an active
:class:`PartitionEntry`, or 202 with one that is being created. ``DELETE /partitions/NAME?job=UID`` returns 200 if the
partition is gone or never existed, and 202 while it is being removed. Errors are a :class:`PartitionRefusal` with 400,
401, 403, 409 or 503. The routes under ``/partitions`` need a bearer token of an authorized account for
:data:`PROXY_AUDIENCE`, which nothing else in the cluster accepts: the connection is not encrypted.

The tracker has one key per partition; its value is a :class:`PartitionEntry` on one line of JSON. Clients watch it
instead of polling.
"""

from collections.abc import Iterable
from typing import Literal

import msgspec

PROXY_AUDIENCE = "muster-vipu-proxy"
"""Of the operator's token for the proxy; the chart's Deployment of the operator names it too."""

PartitionState = Literal["creating", "active", "deleting"]
RefusalReason = Literal["NotOurs", "NoRoom", "OldAttempt", "Unreachable", "Invalid", "Refused", "Full", "Denied"]


class PartitionRequest(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """job: its uid; name and namespace: the job's; size: IPUs; gcds: workers of the instance."""

    job: str
    namespace: str
    name: str
    instance: int
    attempt: int
    size: int
    gcds: int


class PartitionEntry(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A partition in the tracker and in the proxy's responses. controller: ``host:port`` for V-IPU clients; selector:
    ``key=value`` of the nodes that reach its IPUs; since: start of the state, RFC 3339; message: reason of the state.
    reset: the existing V-IPU partition must be reset before it becomes active. An entry for which names.is_parked is
    true belongs to no job and keeps quarantined IPUs out of use. ipus: its IPUs in the form of :func:`ipus_text`; empty
    if the back end does not report them."""

    job: str
    namespace: str
    name: str
    instance: int = 0
    attempt: int = 0
    size: int = 1
    gcds: int = 1
    controller: str = ""
    selector: str = ""
    state: PartitionState = "creating"
    since: str = ""
    message: str = ""
    reset: bool = False
    ipus: str = ""


class PartitionRefusal(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """why: NotOurs (another job's), NoRoom, OldAttempt, Unreachable (no V-IPU controller responds), Invalid (the
    request), Refused (by V-IPU), Full (the tracker), Denied (the caller's token or account)."""

    why: RefusalReason
    message: str


class PartitionCapacity(msgspec.Struct, frozen=True, rename="camel"):
    """The response to ``POST /query {"size": n}``; field names as published."""

    available: bool
    num_of_partitions: int
    message: str = ""


class IpuCount(msgspec.Struct, frozen=True):
    """IPUs of one controller. free: in no partition and not quarantined. largest: size of the largest partition that
    can be created now, 0 if none."""

    total: int
    free: int
    largest: int


class ControllerCapacity(msgspec.Struct, frozen=True, omit_defaults=True):
    """An item of the response to ``GET /controllers``, in the order in which partitions are placed. selector:
    ``key=value`` of the nodes that the controller serves, empty: all nodes. ipus: None if the controller did not
    answer; message: why."""

    controller: str
    selector: str
    ipus: IpuCount | None = None
    message: str = ""


def ipus_text(ipus: Iterable[tuple[str, int]]) -> str:
    """(IPU-Machine, index) pairs as ``10.1.5.10/0,1,2,3 10.1.5.11/0``. Compact, because the tracker is limited to 1
    MiB."""
    by_machine: dict[str, list[int]] = {}
    for machine, index in sorted(ipus):
        by_machine.setdefault(machine, []).append(index)
    return " ".join(f"{machine}/{','.join(map(str, indices))}" for machine, indices in by_machine.items())


def ipus_of(entry: PartitionEntry) -> frozenset[tuple[str, int]]:
    """The inverse of :func:`ipus_text`; ignores invalid text."""
    return frozenset(
        (machine, int(index))
        for part in entry.ipus.split()
        for machine, _, indices in [part.rpartition("/")]
        for index in indices.split(",")
        if index.isascii() and index.isdecimal()
    )
