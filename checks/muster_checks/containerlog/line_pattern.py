"""A pattern for lines that programs write, as the policy's log sources and this check's settings have it."""

import re
from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from muster_checks.base.vocabulary import FaultClass, Verdict

PATTERN_LIMIT = 1024  # characters
INSTRUCTIONS_LIMIT = 2000  # of one compiled pattern, after expansion of repetitions
PATTERNS_LIMIT = 64
SHIPPED_INSTRUCTIONS = 6_000  # more than all sets of known_patterns.yaml need

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_:,]{0,62}")

Known = Literal["cuda", "nccl", "poplar"]
Raised = Literal["WARN", "FAIL"]


def reason_word(name: str) -> str:
    """``name``, if it can be the reason of a finding. Raises ValueError."""
    if not _NAME.fullmatch(name):
        raise ValueError("expected a word of letters, digits, _ : and , that begins with a letter (63 at most)")
    return name


def check_unique(key: str, names: Sequence[str]) -> None:
    """Raises ValueError for a repeated name."""
    for i, name in enumerate(names):
        if name in names[:i]:
            raise ValueError(f'{key}[{i}].name: "{name}": expected a unique name')


class LinePattern(BaseModel):
    """A line that matches ``pattern`` (RE2) is the finding ``name``.

    verdict: WARN by default, because anybody can write anything into a pod's log
    """

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)

    name: str
    pattern: Annotated[str, Field(min_length=1, max_length=PATTERN_LIMIT)]
    fault_class: FaultClass = Field(default=FaultClass.NONE, alias="class")
    verdict: Raised = "WARN"

    _reason = field_validator("name")(reason_word)

    @field_validator("pattern")
    @classmethod
    def _linear(cls, text: str) -> str:
        _check_pattern(text)
        return text

    @property
    def judged(self) -> Verdict:
        return Verdict(self.verdict)


def step_pattern(text: str) -> str:
    """``text``, if it can find step times (:mod:`muster_checks.containerlog.step_line`). Raises ValueError."""
    from muster_checks.containerlog.step_line import GROUPS, OPTIONAL

    names = _check_pattern(text)
    if lacking := [name for name in GROUPS if name not in names]:
        raise ValueError(f"expected the groups (?P<rank>…), (?P<step>…) and (?P<seconds>…); {lacking[0]} is missing")
    if others := sorted(set(names) - {*GROUPS, *OPTIONAL}):
        raise ValueError(f"unknown group {others[0]}; expected {', '.join((*GROUPS, *OPTIONAL))}")
    return text


def _check_pattern(text: str) -> tuple[str, ...]:
    """The names of its groups. Raises ValueError."""
    from muster_checks.dmesg.catalogue.match import Pattern  # here: it loads re2

    compiled = Pattern(text)
    if compiled.instructions > INSTRUCTIONS_LIMIT:
        raise ValueError(
            f"compiles to {compiled.instructions} instructions; expected {INSTRUCTIONS_LIMIT} at most: "
            "fewer or shorter repetitions"
        )
    if compiled.search(b"") is not None:
        raise ValueError("matches every line, even an empty one; expected a pattern that requires some text")
    return compiled.names


def check_patterns(key: str, patterns: Sequence[LinePattern]) -> None:
    """Raises ValueError for a repeated name, and for patterns that are too large for one scan together."""
    from muster_checks.dmesg.catalogue.match import SET_INSTRUCTIONS, Pattern

    check_unique(key, [pattern.name for pattern in patterns])
    total = sum(Pattern(pattern.pattern).instructions for pattern in patterns)
    if total > SET_INSTRUCTIONS - SHIPPED_INSTRUCTIONS:
        raise ValueError(
            f"{key}: together they compile to {total} instructions; expected "
            f"{SET_INSTRUCTIONS - SHIPPED_INSTRUCTIONS} at most: fewer patterns or shorter repetitions"
        )
