"""The policy's rules: an ordered list, the first match decides what a finding does to its node.

Models only; :mod:`muster_tainter.policy.file` reads and watches the file.
"""

import json
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from enum import StrEnum
from functools import cached_property
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, PrivateAttr, field_validator, model_validator

from muster_checks.base.vocabulary import FaultClass
from muster_kube.api.objects import Taint
from muster_tainter.policy import label_syntax as labels
from muster_tainter.policy.budgets import Incidents
from muster_tainter.policy.match import Match
from muster_tainter.policy.pools import Pool
from muster_tainter.policy.recovery import (
    FOREIGN_CHECKS,
    LOG_CHECKS,
    POD_OUTCOMES,
    PROVED_AFTER_BOOT,
    STRAGGLERS,
    HoldDown,
    Proof,
    ProofCheck,
)
from muster_tainter.policy.repair import Quarantine, check_node_keys
from muster_tainter.policy.sections.canary import CanaryPlan
from muster_tainter.policy.sections.devices import ISOLATION_BY_CLASS, Devices, Isolation
from muster_tainter.policy.sections.goodput import Goodput
from muster_tainter.policy.sections.heavy_checks import CHECK_NAME, AnyDuration, Duration, HeavyTesting
from muster_tainter.policy.sections.in_flight import InFlight
from muster_tainter.policy.sections.sources import Sources
from muster_tainter.policy.strict_model import StrictModel

Effect = Literal["NoSchedule", "PreferNoSchedule", "NoExecute"]

OUR_PREFIX = "muster.dev/"
DEFAULT_KEY = OUR_PREFIX + "faulty"
STARTUP_KEY = OUR_PREFIX + "startup"
SPARE_KEY = OUR_PREFIX + "spare"  # of the taint on a spare, and of the label with a person's choice
NOT_FOR_FAULTS = (STARTUP_KEY, SPARE_KEY)  # taints that no fault sets
DEAD_MAN = "dead-man"  # name of the rule for silent agents
SILENT = ("agent", "host", "AgentSilent")  # check, component and reason of such a fault


class CloseOn(StrEnum):
    """What closes a fault without a person.

    BOOT: the first full pass after a reboot no longer has the finding. DRIVER: the driver's clearing line.
    QUIET: no sign for the time in the check's row. CLEAR: a clear request that the agent has carried out.
    PROOF: the checks of the rule's ``proof`` were requested and passed. SOURCE: an external source (a Node condition,
    the agents' pods) reports that it is resolved.
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
    # an IPU of an IPU-Machine does not reboot with its host
    FaultClass.QUARANTINE: (CloseOn.PROOF, CloseOn.SOURCE),
}
_CLOSE_ON_ELSE = (CloseOn.BOOT, CloseOn.DRIVER, CloseOn.QUIET, CloseOn.PROOF, CloseOn.SOURCE)


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
            raise ValueError("expected another key: this one is reserved for new nodes")
        if key == SPARE_KEY:
            raise ValueError("expected another key: this one is reserved for spares")
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
    """What to do about findings that ``match``, and what closes them.

    wait (``for``): seconds that a fault must be open before Muster acts; one that ends earlier leaves nothing
    action:         drain: taint, and evict the node's pods as its pool's ``drain`` configures
                    quarantine: exclude the component (an IPU), not the node
    isolate:        what the taint goes onto, if ``devices.quarantine`` is on: the device, the device until its jobs
                    have ended, or the node. None: by the fault's class
    proof:          what must pass if ``closeOn`` has ``proof``: the failed check, unless it is a log, and these
    hold_down:      None: the policy's
    """

    name: Annotated[str, Field(min_length=1, max_length=63)]
    match: Match = Match()
    wait: AnyDuration = Field(default=0.0, alias="for")
    action: Action
    taint: TaintSpec | None = None
    isolate: Isolation | None = None
    close_on: tuple[CloseOn, ...] | None = None
    proof: Proof | None = None
    hold_down: AnyDuration | None = None

    @model_validator(mode="after")
    def _fields_have_an_effect(self) -> Self:
        if self.action not in _TAINTING and self.taint is not None:
            raise ValueError(f"taint has no effect with action {self.action}")
        if self.action not in _TAINTING and self.isolate is not None:
            raise ValueError(f"isolate has no effect with action {self.action}: only a taint can go onto a device")
        if self.isolate in ("device", "device-first") and (self.taint or TaintSpec()).effect == "PreferNoSchedule":
            raise ValueError("isolate: a device has no taint PreferNoSchedule: expected NoSchedule or NoExecute")
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
        """Whether a finding of this rule becomes a fault."""
        return self.action not in ("event", "ignore")

    def closes_on(self, fault_class: str) -> tuple[CloseOn, ...]:
        """What closes a fault of this rule; by class if the rule does not say."""
        if self.close_on is not None:
            return self.close_on
        return _CLOSE_ON_BY_CLASS.get(fault_class, _CLOSE_ON_ELSE)

    def isolation_of(self, fault_class: str) -> Isolation:
        """What the taint of a fault goes onto, where the policy's ``devices`` allow it."""
        taint = self.node_taint
        if taint is None or taint.effect == "PreferNoSchedule":
            return "node"
        if self.action == "drain":  # the node, unless the rule says otherwise: its pods are to go
            return self.isolate or "node"
        return self.isolate or ISOLATION_BY_CLASS.get(fault_class, "node")

    def proof_of(self, check: str, fault_class: str) -> ProofCheck | None:
        """The checks to request to verify that a fault of ``check`` is resolved; None if there are none."""
        if CloseOn.PROOF not in self.closes_on(fault_class):
            return None
        proof = self.proof or Proof()
        cannot = check in LOG_CHECKS or check in FOREIGN_CHECKS or not CHECK_NAME.fullmatch(check)
        itself = () if cannot else (check,)
        needed = tuple(dict.fromkeys((*itself, *proof.checks)))
        optional = tuple(each for each in proof.if_installed if each not in needed)
        if not needed:
            return None  # checks that may all be absent would prove nothing
        return ProofCheck((*needed, *optional), proof, new_boot=check in PROVED_AFTER_BOOT, optional=optional)

    @cached_property
    def node_taint(self) -> Taint | None:
        return (self.taint or TaintSpec()).taint if self.action in _TAINTING else None


class _EventRule(Rule):
    """Reported and kept as a fault, without a taint."""

    @property
    def opens(self) -> bool:
        return True


class SilentTaint(TaintSpec):
    key: str = OUR_PREFIX + "unknown"


class DeadMan(StrictModel):
    """What to do about a silent agent: one without a ready pod on its node for ``grace`` seconds.

    action: event: report it, on the Node and by its label; taint: also taint the node, within its budgets;
            ignore: do not watch agents
    """

    grace: Duration = 600.0
    action: Literal["event", "taint", "ignore"] = "event"
    taint: SilentTaint = SilentTaint()

    @cached_property
    def rule(self) -> Rule:
        """The same as a rule of the policy: only the agent's return, or a person, closes it."""
        match = Match(check=(SILENT[0],), component=(SILENT[1],), reason=(SILENT[2],))
        if self.action == "ignore":
            return Rule(name=DEAD_MAN, match=match, action="ignore")
        # model_construct: the file format does not allow these fields with an event
        if self.action == "event":
            return _EventRule.model_construct(
                name=DEAD_MAN, match=match, action="event", close_on=(CloseOn.SOURCE,), hold_down=0.0
            )
        return Rule.model_construct(
            name=DEAD_MAN, match=match, action="taint", taint=self.taint, close_on=(CloseOn.SOURCE,)
        )


# they write on behalf of others, from possibly stale copies: a taint that they drop was not removed by a person
ALWAYS_LISTED = ("kube-controller-manager", "kubelet")


def _checked_key(key: str) -> str:
    if not labels.is_key(key):
        raise ValueError(labels.KEY_WORDS)
    return key


class Policy(StrictModel):
    """former_taints: of rules that are gone; the tainter removes them wherever they are, whoever has set them.

    in_flight: None: the tainter does not watch how pods end; goodput: None: it keeps no books of accelerator-hours
    template_keys: labels and annotations of Nodes that repairs may insert although a kubelet can write them
    """

    rules: tuple[Rule, ...]
    pools: Annotated[tuple[Pool, ...], Field(max_length=64)] = ()
    incidents: Incidents = Incidents()
    hold_down: HoldDown = HoldDown()
    dead_man: DeadMan = DeadMan()
    listed_controllers: tuple[str, ...] = ()
    testing: HeavyTesting = HeavyTesting()
    sources: Sources = Sources()
    in_flight: InFlight | None = None
    goodput: Goodput | None = None
    quarantine: Quarantine = Quarantine()
    canary: CanaryPlan = CanaryPlan()
    devices: Devices = Devices()
    former_taints: Annotated[tuple[TaintSpec, ...], Field(max_length=16)] = ()
    template_keys: Annotated[tuple[Annotated[str, AfterValidator(_checked_key)], ...], Field(max_length=64)] = ()
    _replaced: frozenset[Taint] = PrivateAttr(default=frozenset())

    @model_validator(mode="after")
    def _pools_differ(self) -> Self:
        seen: dict[str, int] = {}
        for i, pool in enumerate(self.pools):
            if pool.name in seen:
                raise ValueError(
                    f'pools[{i}].name: "{pool.name}": expected a unique name: pools[{seen[pool.name]}] has it'
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
                    f'rules[{i}].name: "{rule.name}": expected a unique name: rules[{seen[rule.name]}] has it'
                )
            seen[rule.name] = i
            taint = rule.node_taint
            if taint is None:
                continue
            first, value = values.setdefault((taint.key, taint.effect), (i, taint.value))
            if value != taint.value:
                raise ValueError(
                    f'rules[{i}].taint.value: "{taint.value}": expected "{value}" as in rules[{first}]: a node can '
                    f"have only one taint of a key and effect"
                )
            if silent is not None and (silent.key, silent.effect) == (taint.key, taint.effect):
                raise ValueError(
                    f'deadMan.taint.key: "{silent.key}": expected another key or effect: rules[{i}] has both'
                )
        for i, former in enumerate(self.former_taints):
            if former.taint in self._taints:
                raise ValueError(f'formerTaints[{i}].key: "{former.key}": expected a taint that no rule sets now')
        return self

    @model_validator(mode="after")
    def _templates_use_keys_that_no_kubelet_sets(self) -> Self:
        for i, pool in enumerate(self.pools):
            if pool.repair is not None:
                check_node_keys(pool.repair, self.template_keys, f"pools[{i}].repair")
        return self

    @cached_property
    def _taints(self) -> frozenset[Taint]:
        rules = (*self.rules, self.dead_man.rule)
        return frozenset(rule.node_taint for rule in rules if rule.node_taint is not None)

    def replacing(self, former: "Policy") -> Self:
        """This policy, in place of ``former`` while the tainter runs: taints of former rules can still be removed."""
        policy = self.model_copy()
        policy._replaced = (former._replaced | former._taints) - self._taints
        return policy

    def can_have_set(self, taint: Taint) -> bool:
        """Whether it is the taint of a rule, of this policy or of one that it has replaced."""
        return taint in self._taints or taint in self._replaced

    def is_former(self, taint: Taint) -> bool:
        """Whether it is one of ``formerTaints``."""
        return any(taint == former.taint for former in self.former_taints)

    @cached_property
    def _hash(self) -> int:
        return hash(json.dumps(self.model_dump(mode="json"), sort_keys=True))

    def __hash__(self) -> int:
        """Makes policies usable as cache keys. pydantic's own hash fails on the pools' dictionaries."""
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
        """The first rule that matches the finding; for a silent agent the one of ``deadMan``.

        others: number of other nodes with the same finding at the same time
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
        """Numbers of other nodes at which another rule may match a finding."""
        correlated = {rule.match.correlated for rule in self.rules if rule.match.correlated is not None}
        return tuple(sorted(correlated | {0, max(self.incidents.nodes - 1, 0)}))

    def mark_of(self, others: int) -> int:
        """The smallest number of others that all rules treat like this one."""
        return self._marks[bisect_right(self._marks, others) - 1] if others else 0

    @cached_property
    def _by_name(self) -> dict[str, Rule]:
        return {rule.name: rule for rule in self.rules}

    def rule_named(self, name: str) -> Rule | None:
        return self._by_name.get(name)

    def wait_of(self, rule: Rule) -> float:
        """Seconds that a fault of ``rule`` must be open before Muster acts."""
        return max(rule.wait, self.incidents.within if rule.match.solo else 0.0)

    @cached_property
    def suspect_checks(self) -> Mapping[str, tuple[str, ...]]:
        """By the check of an external finding: the heavy checks to request on its node once the node is idle."""
        step_times, in_flight = self.sources.step_times, self.in_flight
        checks = {} if step_times is None else {STRAGGLERS: step_times.heavy_checks}
        return checks if in_flight is None else {**checks, POD_OUTCOMES: in_flight.heavy_checks}

    def pools_of(self, labels: Mapping[str, str]) -> Iterator[Pool]:
        """Every pool that selects a node with these labels, in the file's order."""
        return (pool for pool in self.pools if pool.selector.chooses(labels))

    def pool_of(self, labels: Mapping[str, str]) -> Pool | None:
        """The first of them, which decides how the node is tested, drained and repaired."""
        return next(self.pools_of(labels), None)

    @cached_property
    def label_keys(self) -> frozenset[str]:
        """Labels of Nodes that the pools and the ledger use."""
        keys = {key for pool in self.pools for key in pool.selector.match_labels}
        keys |= {pool.domain for pool in self.pools if pool.domain}
        return frozenset(keys if self.goodput is None else {*keys, self.goodput.model_label})

    def is_controller(self, manager: str) -> bool:
        return manager in ALWAYS_LISTED or manager in self.listed_controllers
