"""What a finding does to its node: an ordered list of rules, the first match wins.

Values only: reading the file and following its changes is :mod:`muster_tainter.policyfile`.
"""

import re
from enum import StrEnum
from fnmatch import translate
from functools import cached_property
from typing import Annotated, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator
from pydantic.alias_generators import to_camel

from muster_checks.vocabulary import FaultClass
from muster_kube.objects import Taint
from muster_tainter import labels
from muster_tainter.testing import HeavyTesting

Effect = Literal["NoSchedule", "PreferNoSchedule", "NoExecute"]

OUR_PREFIX = "muster.dev/"
DEFAULT_KEY = OUR_PREFIX + "faulty"
STARTUP_KEY = OUR_PREFIX + "startup"
PATTERN_LIMIT = 253


class CloseOn(StrEnum):
    """What closes a fault without a person.

    BOOT: another boot's first full pass no longer has the finding. DRIVER: the driver's own clearing line.
    QUIET: nothing for as long as the check's row says. CLEAR: a request to clear that the agent has carried out.
    """

    BOOT = "boot"
    DRIVER = "driver"
    QUIET = "quiet"
    CLEAR = "clear"


_CLOSE_ON_BY_CLASS: dict[str, tuple[CloseOn, ...]] = {
    FaultClass.RESET: (CloseOn.BOOT, CloseOn.DRIVER),
    FaultClass.REBOOT: (CloseOn.BOOT, CloseOn.DRIVER),
    FaultClass.REPLACE: (),
    FaultClass.CONTACT: (),
}
_CLOSE_ON_ELSE = (CloseOn.BOOT, CloseOn.DRIVER, CloseOn.QUIET)


def _listed(value: object) -> object:
    return (value,) if isinstance(value, str) else value


def _checked_patterns(patterns: tuple[str, ...]) -> tuple[str, ...]:
    for pattern in patterns:
        if not pattern or len(pattern) > PATTERN_LIMIT:
            raise ValueError(f"{pattern[:40]!r}: expected a pattern of 1 to {PATTERN_LIMIT} characters")
    return patterns


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, alias_generator=to_camel, populate_by_name=False)


Globs = Annotated[tuple[str, ...], BeforeValidator(_listed), Field(min_length=1)]


class Match(_Strict):
    """Which findings a rule is for; a field that is left out matches all. Patterns: ``*``, ``?`` and ``[...]``."""

    check: Globs = ("*",)
    component: Globs = ("*",)
    reason: Globs = ("*",)
    verdict: Annotated[tuple[Literal["WARN", "FAIL"], ...], BeforeValidator(_listed), Field(min_length=1)] = ("FAIL",)
    fault_class: Annotated[tuple[FaultClass, ...] | None, BeforeValidator(_listed)] = Field(default=None, alias="class")

    _patterns = field_validator("check", "component", "reason")(_checked_patterns)

    @cached_property
    def _compiled(self) -> tuple[re.Pattern[str] | None, ...]:
        # fnmatch's translation is made of atomic groups: linear, whatever the pattern
        return tuple(
            None if "*" in globs else re.compile("|".join(translate(glob) for glob in globs))
            for globs in (self.check, self.component, self.reason)
        )

    def covers(self, check: str, component: str, reason: str, verdict: str, fault_class: str) -> bool:
        if verdict not in self.verdict or (self.fault_class is not None and fault_class not in self.fault_class):
            return False
        for pattern, value in zip(self._compiled, (check, component, reason), strict=True):
            if pattern is not None and pattern.match(value) is None:
                return False
        return True


class TaintSpec(_Strict):
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


class Rule(_Strict):
    name: Annotated[str, Field(min_length=1, max_length=63)]
    match: Match = Match()
    action: Literal["taint", "event", "ignore"]
    taint: TaintSpec | None = None
    close_on: tuple[CloseOn, ...] | None = None

    @model_validator(mode="after")
    def _only_taints_have_taints(self) -> Self:
        if self.action != "taint" and (self.taint is not None or self.close_on is not None):
            raise ValueError(f"taint and closeOn have no effect with action {self.action}")
        return self

    def closes_on(self, fault_class: str) -> tuple[CloseOn, ...]:
        """What closes a fault of this rule; the class decides where the rule does not say."""
        if self.close_on is not None:
            return self.close_on
        return _CLOSE_ON_BY_CLASS.get(fault_class, _CLOSE_ON_ELSE)

    @cached_property
    def node_taint(self) -> Taint | None:
        return (self.taint or TaintSpec()).taint if self.action == "taint" else None


# written on behalf of others, from copies that may be stale: what they drop was not dropped by a person
ALWAYS_LISTED = ("kube-controller-manager", "kubelet")


class Policy(_Strict):
    rules: tuple[Rule, ...]
    listed_controllers: tuple[str, ...] = ()
    testing: HeavyTesting = HeavyTesting()

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        seen: dict[str, int] = {}
        values: dict[tuple[str, str], tuple[int, str]] = {}
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
        return self

    def rule_for(self, check: str, component: str, reason: str, verdict: str, fault_class: str) -> Rule | None:
        """The first rule that covers the finding."""
        for rule in self.rules:
            if rule.match.covers(check, component, reason, verdict, fault_class):
                return rule
        return None

    @cached_property
    def _by_name(self) -> dict[str, Rule]:
        return {rule.name: rule for rule in self.rules}

    def rule_named(self, name: str) -> Rule | None:
        return self._by_name.get(name)

    def is_controller(self, manager: str) -> bool:
        return manager in ALWAYS_LISTED or manager in self.listed_controllers
