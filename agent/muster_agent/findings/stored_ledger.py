"""A ledger as the state file holds it."""

from enum import StrEnum

import msgspec

from muster_agent.findings.made_findings import StoredMade
from muster_agent.findings.replayed_signs import KnownSigns
from muster_checks.base.declaration import Sign
from muster_checks.base.vocabulary import Finding

COUNTER_LIMIT = 2**32  # no check fires as often; versions before 2026-11-23 took over any number from the NodeHealth


class ClearedBy(StrEnum):
    """Why a finding was cleared. DISOWNED: this agent never made it, see :meth:`Ledger.disown`."""

    DRIVER = "driver"
    QUIET = "quiet"
    REQUEST = "request"
    RUN = "run"
    DISOWNED = "disowned"


class ClearedFinding(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A cleared finding.

    at: seconds since the epoch
    """

    component: str
    reason: str
    occurrence: int
    how: str
    at: float
    message: str = ""


class StoredLedger(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A ledger in the state file.

    latest: the last signs of the open findings, one for each verdict
    made:   None in the files of earlier versions, and for a ledger that continues from a NodeHealth
    """

    boot_id: str
    counter: int = 0
    findings: tuple[Finding, ...] = ()
    latest: tuple[Sign, ...] = ()
    over: tuple[ClearedFinding, ...] = ()
    replayed: tuple[KnownSigns, ...] = ()
    replay_floor: float = 0.0
    made: StoredMade | None = None


def renumbered(memory: StoredLedger) -> StoredLedger:
    """Counts anew from 1. What is cleared is dropped: it has old numbers."""
    findings = sorted(memory.findings, key=lambda finding: finding.occurrence)
    numbered = tuple(msgspec.structs.replace(each, occurrence=n) for n, each in enumerate(findings, 1))
    # old numbers are far above, and true: none of them is disowned
    made = StoredMade(unknown_up_to=memory.counter)
    return msgspec.structs.replace(memory, counter=len(numbered), findings=numbered, over=(), made=made)
