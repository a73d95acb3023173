"""What a finding does to its node: an ordered list of rules, the first match wins.

Values only: reading the file and following its changes is :mod:`muster_tainter.policy.file`.
"""

import json
import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from enum import StrEnum
from fnmatch import translate
from functools import cached_property
from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, field_validator, model_validator

from muster_checks.base.vocabulary import FaultClass
from muster_kube.api.objects import Taint
from muster_tainter.policy import label_syntax as labels
from muster_tainter.policy.budgets import Incidents
from muster_tainter.policy.heavy_checks import CHECK_NAME, AnyDuration, Duration, HeavyTesting
from muster_tainter.policy.pools import Pool
from muster_tainter.policy.recovery import FOREIGN_CHECKS, KERNEL_LOG_CHECKS, HoldDown, Proof, ProofCheck
from muster_tainter.policy.repair import Quarantine
from muster_tainter.policy.sources import Sources
from muster_tainter.policy.strict_model import StrictModel

Effect = Literal["NoSchedule", "PreferNoSchedule", "NoExecute"]

OUR_PREFIX = "muster.dev/"
DEFAULT_KEY = OUR_PREFIX + "faulty"
STARTUP_KEY = OUR_PREFIX + "startup"
PATTERN_LIMIT = 253
DEAD_MAN = "dead-man"  # what the rule of a silent agent is called
SILENT = ("agent", "host", "AgentSilent")  # check, component and reason of such a fault


class CloseOn(StrEnum):
    """What closes a fault without a person.

    BOOT: another boot's first full pass no longer has the finding. DRIVER: the driver's own clearing line.
    QUIET: nothing for as long as the check's row says. CLEAR: a request to clear that the agent has carried out.
    PROOF: what the rule's ``proof`` names was asked for and passed. SOURCE: whoever said it, and is no agent of ours (a
    Node's condition, the pods of the agents), says that it is over.
    """

    BOOT = "boot"
    DRIVER = "driver"
    QUIET = "quiet"
    CLEAR = "clear"
    PROOF = "proof"
    SOURCE = "source"


_CLOSE_ON_BY_CLASS: dict[str, tuple[CloseOn, ...]] = {
    FaultClass.RESET: (CloseOn.BOOT, CloseOn.DRIVER, CloseOn.PROOF, CloseOn.SOURCE),
    FaultClass.REBOOT: (CloseOn.BOOT, CloseOn.DRIVER, CloseOn.PROOF, CloseOn.SOURCE),
    FaultClass.REPLACE: (CloseOn.PROOF, CloseOn.SOURCE),
    FaultClass.CONTACT: (CloseOn.PROOF, CloseOn.SOURCE),
    # an IPU of an IPU-Machine does not boot with its host
    FaultClass.QUARANTINE: (CloseOn.PROOF, CloseOn.SOURCE),
}
_CLOSE_ON_ELSE = (CloseOn.BOOT, CloseOn.DRIVER, CloseOn.QUIET, CloseOn.PROOF, CloseOn.SOURCE)


def _listed(value: object) -> object:
    return (value,) if isinstance(value, str) else value


def _checked_patterns(patterns: tuple[str, ...]) -> tuple[str, ...]:
    for pattern in patterns:
        if not pattern or len(pattern) > PATTERN_LIMIT:
            raise ValueError(f"{pattern[:40]!r}: expected a pattern of 1 to {PATTERN_LIMIT} characters")
    return patterns


Globs = Annotated[tuple[str, ...], BeforeValidator(_listed), Field(min_length=1)]


class Match(StrictModel):
    """Which findings a rule is for; a field that is left out matches all. Patterns: ``*``, ``?`` and ``[...]``.

    correlated: only where at least so many other nodes found the same at the same time (policy's ``incidents.within``)
    solo:       only where that is no incident (fewer nodes than ``incidents.nodes``); such a fault waits for
                ``incidents.within`` before anything is done about it, as others may follow
    """

    check: Globs = ("*",)
    component: Globs = ("*",)
    reason: Globs = ("*",)
    verdict: Annotated[tuple[Literal["WARN", "FAIL"], ...], BeforeValidator(_listed), Field(min_length=1)] = ("FAIL",)
    fault_class: Annotated[tuple[FaultClass, ...] | None, BeforeValidator(_listed)] = Field(default=None, alias="class")

    correlated: Annotated[int, Field(ge=1, le=100_000)] | None = None
    solo: Literal[True] | None = None

    _patterns = field_validator("check", "component", "reason")(_checked_patterns)

    @model_validator(mode="after")
    def _not_both(self) -> Self:
        if self.solo and self.correlated:
            raise ValueError("correlated and solo exclude each other: expected one of them")
        return self

    @cached_property
    def _compiled(self) -> tuple[re.Pattern[str] | None, ...]:
        # fnmatch's translation is made of atomic groups: linear, whatever the pattern
        return tuple(
            None if "*" in globs else re.compile("|".join(translate(glob) for glob in globs))
            for globs in (self.check, self.component, self.reason)
        )

    def covers(
        self, check: str, component: str, reason: str, verdict: str, fault_class: str, others: int, *, incident: bool
    ) -> bool:
        if self.correlated is not None and others < self.correlated:
            return False
        if self.solo and incident:
            return False
        if verdict not in self.verdict or (self.fault_class is not None and fault_class not in self.fault_class):
            return False
        for pattern, value in zip(self._compiled, (check, component, reason), strict=True):
            if pattern is not None and pattern.match(value) is None:
                return False
        return True


class TaintSpec(StrictModel):
    key: str = DEFAULT_KEY
    value: str = "true"
    effect: Effect = "NoSchedule"

    @field_validator("key")
    @classmethod
    def _qualified(cls, key: str) -> str:
        if not labels.is_key(key):
            raise ValueError(labels.KEY_WORDS)
        if key == STARTUP_KEY:
            raise ValueError("expected another key: this one is for nodes that have not passed yet")
        return key

    @field_validator("value")
    @classmethod
    def _label_value(cls, value: str) -> str:
        if not labels.is_value(value):
            raise ValueError(labels.VALUE_WORDS)
        return value

    @cached_property
    def taint(self) -> Taint:
        return Taint(key=self.key, value=self.value, effect=self.effect)


Action = Literal["taint", "drain", "quarantine", "event", "ignore"]
_TAINTING = ("taint", "drain")


class Rule(StrictModel):
    """What is done about findings that ``match``, and what ends it.

    wait (``for``): a fault is acted upon once it has been open for so long, in seconds; what goes before leaves nothing
    action:         drain: taint, and have the pods of the node go as its pool's ``drain`` says
                    quarantine: the component (an IPU) is kept out of use, not the node
    proof:          what passes where ``closeOn`` has ``proof``: the failed check itself, unless it is a log, and these
    hold_down:      None: the policy's
    """

    name: Annotated[str, Field(min_length=1, max_length=63)]
    match: Match = Match()
    wait: AnyDuration = Field(default=0.0, alias="for")
    action: Action
    taint: TaintSpec | None = None
    close_on: tuple[CloseOn, ...] | None = None
    proof: Proof | None = None
    hold_down: AnyDuration | None = None

    @model_validator(mode="after")
    def _fields_have_an_effect(self) -> Self:
        if self.action not in _TAINTING and self.taint is not None:
            raise ValueError(f"taint has no effect with action {self.action}")
        if self.action in ("event", "ignore"):
            given = {"closeOn": self.close_on, "proof": self.proof, "holdDown": self.hold_down}
            for name, value in given.items():
                if value is not None:
                    raise ValueError(f"{name} has no effect with action {self.action}")
            if self.wait:
                raise ValueError(f"for has no effect with action {self.action}")
        if self.proof is not None and self.close_on is not None and CloseOn.PROOF not in self.close_on:
            raise ValueError("proof has no effect where closeOn does not list proof")
        return self

    @property
    def opens(self) -> bool:
        """A finding of this rule becomes a fault."""
        return self.action not in ("event", "ignore")

    def closes_on(self, fault_class: str) -> tuple[CloseOn, ...]:
        """What closes a fault of this rule; the class decides where the rule does not say."""
        if self.close_on is not None:
            return self.close_on
        return _CLOSE_ON_BY_CLASS.get(fault_class, _CLOSE_ON_ELSE)

    def proof_of(self, check: str, fault_class: str) -> ProofCheck | None:
        """What has to pass, on request, for a fault of ``check`` to be over; None: nothing that could be asked for."""
        if CloseOn.PROOF not in self.closes_on(fault_class):
            return None
        proof = self.proof or Proof()
        cannot = check in KERNEL_LOG_CHECKS or check in FOREIGN_CHECKS or not CHECK_NAME.fullmatch(check)
        itself = () if cannot else (check,)
        checks = tuple(dict.fromkeys((*itself, *proof.checks)))
        if not checks:
            return None
        # nothing in the log says that the device was seen to: another boot does
        return ProofCheck(checks, proof, new_boot=check in KERNEL_LOG_CHECKS)

    @cached_property
    def node_taint(self) -> Taint | None:
        return (self.taint or TaintSpec()).taint if self.action in _TAINTING else None


class _Spoken(Rule):
    """What is said of a node and kept as a fault of it, without a taint."""

    @property
    def opens(self) -> bool:
        return True


class SilentTaint(TaintSpec):
    key: str = OUR_PREFIX + "unknown"


class DeadMan(StrictModel):
    """What a node is whose agent is silent: no pod of it has been ready there for ``grace`` seconds.

    action: event: it is said, on the Node and by its label; taint: the node is tainted, too, under its budgets;
            ignore: agents are not watched
    """

    grace: Duration = 600.0
    action: Literal["event", "taint", "ignore"] = "event"
    taint: SilentTaint = SilentTaint()

    @cached_property
    def rule(self) -> Rule:
        """As a rule of the policy has it: only the agent's return, or a person, ends it."""
        match = Match(check=(SILENT[0],), component=(SILENT[1],), reason=(SILENT[2],))
        if self.action == "ignore":
            return Rule(name=DEAD_MAN, match=match, action="ignore")
        # model_construct: what only a taint has room for, an event may not be given in a file
        if self.action == "event":
            return _Spoken.model_construct(
                name=DEAD_MAN, match=match, action="event", close_on=(CloseOn.SOURCE,), hold_down=0.0
            )
        return Rule.model_construct(
            name=DEAD_MAN, match=match, action="taint", taint=self.taint, close_on=(CloseOn.SOURCE,)
        )


# written on behalf of others, from copies that may be stale: what they drop was not dropped by a person
ALWAYS_LISTED = ("kube-controller-manager", "kubelet")


class Policy(StrictModel):
    rules: tuple[Rule, ...]
    pools: Annotated[tuple[Pool, ...], Field(max_length=64)] = ()
    incidents: Incidents = Incidents()
    hold_down: HoldDown = HoldDown()
    dead_man: DeadMan = DeadMan()
    listed_controllers: tuple[str, ...] = ()
    testing: HeavyTesting = HeavyTesting()
    sources: Sources = Sources()
    quarantine: Quarantine = Quarantine()

    @model_validator(mode="after")
    def _pools_differ(self) -> Self:
        seen: dict[str, int] = {}
        for i, pool in enumerate(self.pools):
            if pool.name in seen:
                raise ValueError(
                    f'pools[{i}].name: "{pool.name}": expected a name of its own: pools[{seen[pool.name]}] has it'
                )
            seen[pool.name] = i
        return self

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        seen: dict[str, int] = {}
        values: dict[tuple[str, str], tuple[int, str]] = {}
        silent = self.dead_man.rule.node_taint
        for i, rule in enumerate(self.rules):
            if rule.name in seen:
                raise ValueError(
                    f'rules[{i}].name: "{rule.name}": expected a name of its own: rules[{seen[rule.name]}] has it'
                )
            seen[rule.name] = i
            taint = rule.node_taint
            if taint is None:
                continue
            first, value = values.setdefault((taint.key, taint.effect), (i, taint.value))
            if value != taint.value:
                raise ValueError(
                    f'rules[{i}].taint.value: "{taint.value}": expected "{value}" as in rules[{first}]: a node takes '
                    f"one taint of a key and effect"
                )
            if silent is not None and (silent.key, silent.effect) == (taint.key, taint.effect):
                raise ValueError(
                    f'deadMan.taint.key: "{silent.key}": expected a key or an effect of its own: rules[{i}] has both'
                )
        return self

    @cached_property
    def _hash(self) -> int:
        return hash(json.dumps(self.model_dump(mode="json"), sort_keys=True))

    def __hash__(self) -> int:
        """What is made of a policy can be kept with it. Pools have dictionaries, so pydantic's own would fail."""
        return self._hash

    def rule_for(
        self,
        check: str,
        component: str,
        reason: str,
        verdict: str,
        fault_class: str,
        others: int = 0,
    ) -> Rule | None:
        """The first rule that covers the finding; of a silent agent ``deadMan``.

        others: nodes that found the same at the same time
        """
        if (check, component, reason) == SILENT:
            return self.dead_man.rule if verdict == "FAIL" else None
        incident = others + 1 >= self.incidents.nodes
        for rule in self.rules:
            if rule.match.covers(check, component, reason, verdict, fault_class, others, incident=incident):
                return rule
        return None

    @cached_property
    def _marks(self) -> tuple[int, ...]:
        """Numbers of other nodes from which on another rule may be for a finding."""
        asked = {rule.match.correlated for rule in self.rules if rule.match.correlated is not None}
        return tuple(sorted(asked | {0, max(self.incidents.nodes - 1, 0)}))

    def mark_of(self, others: int) -> int:
        """The least number of others that every rule takes like this one."""
        return self._marks[bisect_right(self._marks, others) - 1] if others else 0

    @cached_property
    def _by_name(self) -> dict[str, Rule]:
        return {rule.name: rule for rule in self.rules}

    def rule_named(self, name: str) -> Rule | None:
        return self._by_name.get(name)

    def wait_of(self, rule: Rule) -> float:
        """Seconds that a fault of ``rule`` is open before anything is done about it."""
        return max(rule.wait, self.incidents.within if rule.match.solo else 0.0)

    def pools_of(self, labels: Mapping[str, str]) -> Iterator[Pool]:
        """Every pool that chooses a node with these labels, in the order of the file."""
        return (pool for pool in self.pools if pool.selector.chooses(labels))

    def pool_of(self, labels: Mapping[str, str]) -> Pool | None:
        """The first of them: how the node tests, is drained and repaired is its word."""
        return next(self.pools_of(labels), None)

    @cached_property
    def label_keys(self) -> frozenset[str]:
        """Labels of Nodes that the pools look at."""
        keys = {key for pool in self.pools for key in pool.selector.match_labels}
        return frozenset(keys | {pool.domain for pool in self.pools if pool.domain})

    def is_controller(self, manager: str) -> bool:
        return manager in ALWAYS_LISTED or manager in self.listed_controllers
