"""policy.yaml: what verifies that a fault is resolved (``proof``), and how long a flapping node is held
(``holdDown``).

Models only; :mod:`muster_tainter.verification.node_plan` requests the proofs.
"""

import hashlib
import re
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field, field_validator, model_validator

from muster_kube.nodehealth import CheckRequest
from muster_tainter.policy.sections.heavy_checks import AnyDuration, Checks, Duration, check_names
from muster_tainter.policy.strict_model import StrictModel

MANAGER = "muster-tainter-proof"
ID_PREFIX = "proof-"
_DIGEST = 10
_ID = re.compile(ID_PREFIX + rf"([0-9a-f]{{{_DIGEST}}})-([0-9]{{1,12}})")

POD_OUTCOMES = "podoutcomes"  # findings of nodes on which jobs fail
DEVICE_HEALTH = "devicehealth"  # findings of devices that a pod's status reports as unhealthy
STRAGGLERS = "stragglers"  # findings of nodes whose rank slows a job
# agents run these, which read a log
AGENT_LOG_CHECKS = frozenset({"dmesg", "containerlog"})
# they read a log and remember its lines: another run proves nothing
LOG_CHECKS = AGENT_LOG_CHECKS | {"loki", "podlog"}
# no agent runs these: they stand for external sources
FOREIGN_CHECKS = frozenset({"agent", "condition", "prometheus", POD_OUTCOMES, DEVICE_HEALTH, STRAGGLERS})
# a proof counts only after a reboot: these checks do not show that the device, or the node's services, were checked
PROVED_AFTER_BOOT = LOG_CHECKS | {POD_OUTCOMES}
# no agent runs these; their sources report when a fault is resolved
SOURCE_CHECKS = FOREIGN_CHECKS | (LOG_CHECKS - AGENT_LOG_CHECKS)


class Proof(StrictModel):
    """checks:   in addition to the failed check
    if_installed: further checks, which do not count on a node that lacks what they need, such as a vendor's tool
    passes:   required passes in a row, ``interval`` seconds apart. Three by default, because a single pass of a
              part that fails intermittently is luck: one that fails every second time passes three in one of eight
    retry:    seconds until the next request after a failure; doubled each time, up to a day
    """

    checks: Checks = ()
    if_installed: Checks = ()
    passes: Annotated[int, Field(ge=1, le=100)] = 3
    interval: AnyDuration = 10.0
    retry: Duration = 1800.0

    _names = field_validator("checks", "if_installed")(check_names)

    @model_validator(mode="after")
    def _each_once(self) -> "Proof":
        if twice := set(self.checks) & set(self.if_installed):
            raise ValueError(f"ifInstalled: {min(twice)}: expected a check that checks does not list")
        return self


@dataclass(frozen=True)
class ProofCheck:
    """The requested checks. optional: those of them that do not count where they are not installed. new_boot: only
    after a reboot since the fault was seen. component: what a run has to include and find healthy, whatever it finds
    on others; empty: everything that the checks look at. alone: the heavy checks test only this device."""

    checks: tuple[str, ...]
    proof: Proof
    new_boot: bool
    component: str = ""
    optional: tuple[str, ...] = ()
    alone: bool = False

    @property
    def digest(self) -> str:
        """Identifies the proof in a request's id."""
        what = f"{','.join(self.checks)} {self.proof.passes} {self.proof.interval:g} {self.component}".strip()
        what += f" {','.join(self.optional)}" if self.optional else ""
        what += " alone" if self.alone else ""
        return hashlib.sha256(what.encode()).hexdigest()[:_DIGEST]

    @property
    def names(self) -> list[str]:
        """The checks, for people."""
        return [f"{check} (if installed)" if check in self.optional else check for check in self.checks]

    def names_without(self, left_out: tuple[str, ...]) -> str:
        """The checks that counted where ``left_out`` are not installed, for people."""
        absent = [check for check in self.optional if check in left_out]
        counted = ", ".join(check for check in self.checks if check not in absent)
        return f"{counted} (without {', '.join(absent)}: not installed)" if absent else counted


@dataclass(frozen=True)
class ProofRequest:
    """A request for proof, from its id. at: seconds since the epoch; it proves nothing about later events. without:
    checks that its answer leaves out."""

    digest: str
    at: float
    without: tuple[str, ...] = ()

    @property
    def id(self) -> str:
        return f"{ID_PREFIX}{self.digest}-{int(self.at)}"


def read_proof_request(request: CheckRequest) -> ProofRequest | None:
    """None if it is not one of our requests for proof."""
    match = _ID.fullmatch(request.id)
    return ProofRequest(match[1], float(match[2])) if match and request.by == MANAGER else None


class HoldDown(StrictModel):
    """A resolved fault keeps its taint for ``base * (2 ** p - 1)`` seconds, at most ``longest``. p is the penalty of
    that node and check: how often such a fault was resolved before, halved every ``half_life``.

    So the first release waits only for the proof, the second in a day waits about ``base``, and each further one twice
    as long (as BGP damps flapping routes, RFC 2439: a figure that grows with each flap and decays).
    """

    base: AnyDuration = 300.0
    longest: Duration = 86_400.0
    half_life: Duration = 6 * 3600.0

    @model_validator(mode="after")
    def _ordered(self) -> "HoldDown":
        if self.longest < self.base:
            raise ValueError("longest is shorter than base: expected the same or more")
        return self

    def seconds(self, penalty: float, base: float | None = None) -> float:
        """How long a fault with this penalty is held. base: the rule's."""
        base = self.base if base is None else base
        return float(min(max(self.longest, base), base * (2 ** min(penalty, 64.0) - 1)))

    def decayed(self, penalty: float, age_s: float) -> float:
        """A negative ``age_s`` (the clock was set back) counts as 0."""
        return float(penalty * 0.5 ** (max(0.0, age_s) / self.half_life))
