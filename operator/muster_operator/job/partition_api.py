"""What the operator and the V-IPU proxy say to each other: the REST of ``/partitions`` and the tracker ConfigMap.

Ours: the original's routes and the tracker's format are not public.

``PUT /partitions/NAME`` with a :class:`PartitionRequest` makes it or takes it over (idempotent; the same attempt
returns it unchanged, a higher one resets it once); 200 with a :class:`PartitionEntry` that is active, 202 with one that
is being made. ``DELETE /partitions/NAME?job=UID``: 200 gone (or never there), 202 under way. Else a
:class:`PartitionRefusal` with 400, 401, 403, 409 or 503. All need the bearer token of an account that may use them.

The tracker has a key for each partition, its value one line of JSON, a :class:`PartitionEntry`. Whoever waits watches
it: no answer has to be asked for again.
"""

from collections.abc import Iterable
from typing import Literal

import msgspec

PartitionState = Literal["creating", "active", "deleting"]
RefusalReason = Literal["NotOurs", "NoRoom", "OldAttempt", "Unreachable", "Invalid", "Refused", "Full"]


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
    """A partition as the tracker has it, and as the proxy answers. controller: ``host:port`` as V-IPU clients reach it;
    selector: ``key=value`` of the nodes that reach its IPUs; since: of the state, RFC 3339; message: why it is so.
    reset: creating means that what V-IPU has is to be reset first. An entry that names.is_parked
    is nobody's: it keeps quarantined IPUs out of the way. ipus: on which it lies, as :func:`ipus_text` writes
    them; empty where the back end does not tell."""

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
    """why: NotOurs (another job's), NoRoom, OldAttempt, Unreachable (no V-IPU controller answers), Invalid (the wish),
    Refused (V-IPU said no), Full (the tracker is)."""

    why: RefusalReason
    message: str


class PartitionCapacity(msgspec.Struct, frozen=True, rename="camel"):
    """The answer to ``POST /query {"size": n}``; field names as published."""

    available: bool
    num_of_partitions: int
    message: str = ""


def ipus_text(ipus: Iterable[tuple[str, int]]) -> str:
    """(IPU-Machine, index) of each, as ``10.1.5.10/0,1,2,3 10.1.5.11/0``: short, as the tracker ends at 1 MiB."""
    by_machine: dict[str, list[int]] = {}
    for machine, index in sorted(ipus):
        by_machine.setdefault(machine, []).append(index)
    return " ".join(f"{machine}/{','.join(map(str, indices))}" for machine, indices in by_machine.items())


def ipus_of(entry: PartitionEntry) -> frozenset[tuple[str, int]]:
    """What :func:`ipus_text` wrote; what is no such text is left out."""
    return frozenset(
        (machine, int(index))
        for part in entry.ipus.split()
        for machine, _, indices in [part.rpartition("/")]
        for index in indices.split(",")
        if index.isascii() and index.isdecimal()
    )
