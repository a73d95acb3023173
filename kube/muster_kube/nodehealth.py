"""NodeHealth (``nodehealths.muster.dev``, v1alpha1): an agent's report about its node, and requests to the agent.

The agent writes ``status``, only when it changes; controllers and people write ``spec``. Times are RFC 3339 UTC with
milliseconds. All lists and strings are bounded, so an object stays below 100 kB.
"""

import hashlib
from collections.abc import Iterable

import msgspec

from muster_kube.api.objects import Api as _Api
from muster_kube.api.objects import Metadata, OwnerReference

__all__ = [
    "AgentIdentity",
    "CanaryReport",
    "CanaryRequest",
    "CheckRequest",
    "ClearEntry",
    "ClearedFault",
    "Metadata",
    "NodeHealth",
    "NodeHealthSpec",
    "NodeHealthStatus",
    "OwnerReference",
    "ReportedCheck",
    "ReportedFinding",
    "ReportedMeasurement",
    "RequestAnswer",
]

GROUP = "muster.dev"
VERSION = "v1alpha1"
PLURAL = "nodehealths"
PATH = f"/apis/{GROUP}/{VERSION}/{PLURAL}"

CANARY = "canary"  # the check of a canary's made-up finding, which is in no NodeHealth
RESERVED_CHECKS = ("muster", "*")  # names of the tainter's own faults
FINDINGS_LIMIT = 64  # for each check
CLEARED_LIMIT = 16  # for each check
DISOWNED_LIMIT = FINDINGS_LIMIT  # for each check, in addition: as many as somebody can forge at once
CLEAR_LIMIT = 32  # entries of spec.clear
REQUESTS_LIMIT = 16
# A number further above the last one does not belong to the same count: somebody has forged or edited it. Agents
# publish at most once a second, so this is eleven days of constant firing.
OCCURRENCE_GAP = 1_000_000
# A number closes only numbers this close below it. Half as much, so that a number which an agent refuses closes nothing
# that this agent counts from there on.
CLOSING_GAP = OCCURRENCE_GAP // 2


def is_later(occurrence: int, other: int, gap: int = CLOSING_GAP) -> bool:
    """Whether ``occurrence`` is a later firing than ``other``: higher, or so far below that it was counted anew.

    As with serial numbers (RFC 1982), both of two distant numbers are later than the other. So a number closes only
    what is at most ``gap`` below it, and no number can close everything that will ever follow.
    """
    return occurrence > other or other - occurrence > gap


def highest_counted(numbers: Iterable[int], start: int = 0) -> int:
    """The highest of ``numbers`` that a count from ``start`` may have reached; numbers far above it are left out."""
    for number in sorted(numbers):
        if 0 < number - start <= OCCURRENCE_GAP:
            start = number
    return start


class ReportedMeasurement(_Api, frozen=True):
    name: str
    value: float
    unit: str = ""  # omitted when empty: agent/muster_agent/findings/health_status.py says why
    threshold: float | None = None


class ReportedFinding(_Api, frozen=True):
    """A non-PASS verdict on one component; fields as :class:`muster_checks.base.vocabulary.Finding`.

    address: PCI address of a NIC that the component names in another way; empty: the component says it, or it has none
    """

    component: str
    reason: str
    verdict: str
    message: str = ""
    fault_class: str = msgspec.field(default="", name="class")
    measurements: tuple[ReportedMeasurement, ...] = ()
    first_seen: str = ""
    last_seen: str = ""
    count: int = 1
    occurrence: int = 1
    origin: str = ""
    address: str = ""


class ClearedFault(_Api, frozen=True):
    """A finding that is closed, and why.

    how: ``driver`` (the driver logged that the fault is over), ``quiet`` (no occurrence for the catalogue's time),
         ``request`` (an entry of spec.clear), ``run`` (a run that passed), ``disowned`` (the agent never made it)
    """

    component: str
    reason: str
    occurrence: int
    how: str
    at: str
    message: str = ""


class ReportedCheck(_Api, frozen=True):
    name: str
    verdict: str
    reason: str = ""
    message: str = ""
    last_change: str = ""
    findings: tuple[ReportedFinding, ...] = ()
    more_findings: int = 0  # findings beyond FINDINGS_LIMIT
    last_occurrence: int = 0  # the highest number used so far: an agent that lost its state continues above it
    cleared: tuple[ClearedFault, ...] = ()


class AgentIdentity(_Api, frozen=True):
    """fingerprint: SHA-256 (hexadecimal) of the certificate with which the agent proves itself to other agents.
    tls_port: where it serves them. Empty and 0: it does not."""

    pod_uid: str = msgspec.field(default="", name="podUID")
    version: str = ""
    fingerprint: str = ""
    tls_port: int = 0


class RequestAnswer(_Api, frozen=True):
    """The result of a request. finished: empty while it is running. reason, message: why it is not PASS, or why checks
    do not count. without: checks that do not count, because they are not installed on the node."""

    id: str
    verdict: str
    runs: int = 0
    passes: int = 0
    finished: str = ""
    reason: str = ""
    message: str = ""
    without: tuple[str, ...] = ()


class CanaryReport(_Api, frozen=True):
    """The last canary that the agent has sent; see :class:`CanaryRequest`. It is no finding: it stands beside the
    checks, so no reader of findings can take it for one.

    id: of the request that has no result yet, empty without one. at: when it was sent, empty if none was. unread: when
    one after it was not sent, because the agent did not read its line in the kernel log; empty if there is none
    """

    id: str = ""
    at: str = ""
    unread: str = ""


class NodeHealthStatus(_Api, frozen=True):
    """failing: comma-separated checks that are not PASS, the worst first. message: of the worst one. Both are columns
    of ``kubectl get nodehealths``."""

    verdict: str = ""
    failing: str = ""
    message: str = ""
    checks: tuple[ReportedCheck, ...] = ()
    boot_id: str = msgspec.field(default="", name="bootID")
    agent: AgentIdentity = AgentIdentity()
    idle_since: str = ""
    due: tuple[str, ...] = ()
    answers: tuple[RequestAnswer, ...] = ()
    canary: CanaryReport = CanaryReport()
    observed_at: str = ""


class CheckRequest(_Api, frozen=True):
    id: str
    checks: tuple[str, ...] = ()
    params: dict[str, str] = msgspec.field(default_factory=dict)
    by: str = ""
    expires: str = ""
    force: bool = False


def device_digest(driver: str, pool: str, device: str) -> str:
    """A device's name in Dynamic Resource Allocation, which may have 380 characters, as the parameter ``held_as`` of a
    request has it: seven hexadecimal digits.

    Two names may have the same digest; the device then counts as held by whoever holds the other.
    """
    return hashlib.sha256(f"{driver}/{pool}/{device}".encode()).hexdigest()[:7]


class ClearEntry(_Api, frozen=True):
    """A person's request to close findings of (check, component) up to ``occurrence``.

    component: one component, or ``*`` for all components of the check. occurrence: the highest one to close; the
    numbers increase throughout the check, so an entry never closes a later finding.
    """

    check: str
    component: str
    occurrence: int
    by: str = ""
    at: str = ""


class CanaryRequest(_Api, frozen=True):
    """Requests canaries: made-up findings that test the way from the agent to the taint, and taint nothing.

    period_seconds: the agent sends one so often, for the tainter; 0: none. id, by: a person's request for one at once.
    result, message: what became of that one, written by the tainter; empty until it has arrived
    """

    period_seconds: int = 0
    id: str = ""
    by: str = ""
    result: str = ""
    message: str = ""


class NodeHealthSpec(_Api, frozen=True):
    requests: tuple[CheckRequest, ...] = ()
    clear: tuple[ClearEntry, ...] = ()
    canary: CanaryRequest = CanaryRequest()


class NodeHealth(_Api, frozen=True):
    metadata: Metadata
    spec: NodeHealthSpec = NodeHealthSpec()
    status: NodeHealthStatus = NodeHealthStatus()
