"""policy.yaml's section ``testing``: how many nodes run heavy checks at once, how soon every node has its turn, and
what a pool's nodes have to run before their first job and after each one.

Values only; what is done with them is :mod:`muster_tainter.plan`.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator
from pydantic.alias_generators import to_camel

from muster_tainter import labels as kubernetes_labels

DAY_S = 86_400.0
_UNITS_S = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": DAY_S}
_TIME = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)([smhd])")
_PERCENT = re.compile(r"([0-9]{1,3})%")
_MOST_AT_ONCE = 100_000
_LONGEST_S = 366 * DAY_S

CHECK_NAME = re.compile(r"[a-z][a-z0-9]{0,62}")


@dataclass(frozen=True)
class AtOnce:
    """A number of nodes, or (``percent``) a share of them."""

    count: int = 0
    percent: int | None = None

    def of(self, nodes: int) -> int:
        """How many of ``nodes``; a share is rounded up, as a PodDisruptionBudget rounds its own: 5 % of 8 is 1."""
        return self.count if self.percent is None else math.ceil(nodes * self.percent / 100)

    def __str__(self) -> str:
        return str(self.count) if self.percent is None else f"{self.percent}%"


def _at_once(value: object) -> object:
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MOST_AT_ONCE:
        return AtOnce(value)
    match = _PERCENT.fullmatch(value) if isinstance(value, str) else None
    if match is None or int(match[1]) > 100:
        raise ValueError(f'expected a number of nodes, 0 to {_MOST_AT_ONCE}, or a share such as "5%"')
    return AtOnce(percent=int(match[1]))


def _seconds(value: object) -> object:
    match = _TIME.fullmatch(value) if isinstance(value, str) else None
    seconds = float(match[1]) * _UNITS_S[match[2]] if match else 0.0
    if not 1.0 <= seconds <= _LONGEST_S:
        raise ValueError("expected a time of 1 s to 366 days, such as 90s, 10m, 2h or 7d")
    return seconds


def _listed(value: object) -> object:
    return (value,) if isinstance(value, str) else value


def _check_names(names: tuple[str, ...]) -> tuple[str, ...]:
    for name in names:
        if not CHECK_NAME.fullmatch(name):
            raise ValueError(f"{name[:40]!r}: expected the name of a check: lower case letters and digits")
    if len(set(names)) < len(names):
        raise ValueError("expected each check once")
    return names


Nodes = Annotated[AtOnce, BeforeValidator(_at_once)]
NodesIfAny = Annotated[AtOnce | None, BeforeValidator(_at_once)]
Duration = Annotated[float, BeforeValidator(_seconds)]
Checks = Annotated[tuple[str, ...], BeforeValidator(_listed), Field(max_length=16)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, alias_generator=to_camel, populate_by_name=False)


class Selector(_Strict):
    """A node is chosen that has all these labels; no label chooses every node."""

    match_labels: dict[str, str] = Field(default_factory=dict, max_length=16)

    @field_validator("match_labels")
    @classmethod
    def _labels(cls, labels: dict[str, str]) -> dict[str, str]:
        for key, value in labels.items():
            if not kubernetes_labels.is_key(key):
                raise ValueError(f"{key[:80]!r}: {kubernetes_labels.KEY_WORDS}")
            if not kubernetes_labels.is_value(value):
                raise ValueError(f"{value[:80]!r}: {kubernetes_labels.VALUE_WORDS}")
        return labels

    def chooses(self, labels: Mapping[str, str]) -> bool:
        return all(labels.get(key) == value for key, value in self.match_labels.items())


class Pool(_Strict):
    """at_once: None: only the whole fleet's cap counts. post_flight: asked for when a job's end leaves a node idle;
    pre_flight: what a node has to pass before it loses the taint ``muster.dev/startup``."""

    name: Annotated[str, Field(min_length=1, max_length=63)]
    selector: Selector
    at_once: NodesIfAny = None
    post_flight: Checks = ()
    pre_flight: Checks = ()

    _names = field_validator("post_flight", "pre_flight")(_check_names)


class HeavyTesting(_Strict):
    """at_once:  over the whole fleet. By default 5 %: a round of pciebw, gpumem and dcgm takes about three minutes, so
                 an idle fleet is through in an hour, which is how often heavy checks are due by default; and at any
                 moment nineteen nodes of twenty are as free for jobs as they look
    coverage: every node is tested within it, in seconds. By default a week: a node that is never idle for a week is
              one that people should hear of
    pause:    after an answer that measured nothing; each further one doubles it, up to a day
    """

    at_once: Nodes = AtOnce(percent=5)
    coverage: Duration = 7 * DAY_S
    pause: Duration = 600.0
    pools: Annotated[tuple[Pool, ...], Field(max_length=64)] = ()

    @model_validator(mode="after")
    def _names_differ(self) -> Self:
        seen: dict[str, int] = {}
        for i, pool in enumerate(self.pools):
            if pool.name in seen:
                raise ValueError(
                    f'pools[{i}].name: "{pool.name}": expected a name of its own: pools[{seen[pool.name]}] has it'
                )
            seen[pool.name] = i
        return self

    def pool_of(self, labels: Mapping[str, str]) -> Pool | None:
        """The first pool that chooses a node with these labels."""
        for pool in self.pools:
            if pool.selector.chooses(labels):
                return pool
        return None

    @cached_property
    def label_keys(self) -> frozenset[str]:
        """Labels of Nodes that the pools look at."""
        return frozenset(key for pool in self.pools for key in pool.selector.match_labels)
