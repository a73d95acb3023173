"""Which findings a rule of the policy matches."""

import re
from fnmatch import translate
from functools import cached_property
from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, field_validator, model_validator

from muster_checks.base.vocabulary import FaultClass
from muster_tainter.policy.strict_model import StrictModel

PATTERN_LIMIT = 253


def _listed(value: object) -> object:
    return (value,) if isinstance(value, str) else value


def _checked_patterns(patterns: tuple[str, ...]) -> tuple[str, ...]:
    for pattern in patterns:
        if not pattern or len(pattern) > PATTERN_LIMIT:
            raise ValueError(f"{pattern[:40]!r}: expected a pattern of 1 to {PATTERN_LIMIT} characters")
    return patterns


Globs = Annotated[tuple[str, ...], BeforeValidator(_listed), Field(min_length=1)]


class Match(StrictModel):
    """Which findings a rule matches; a missing field matches all. Patterns: ``*``, ``?`` and ``[...]``.

    correlated: only if at least this many other nodes have the same finding at the same time (``incidents.within``)
    solo:       only if it is not an incident (fewer nodes than ``incidents.nodes``); such a fault waits for
                ``incidents.within``, as others may follow
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
        # fnmatch translates to atomic groups: linear time for any pattern
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
