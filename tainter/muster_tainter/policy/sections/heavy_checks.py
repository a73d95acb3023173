"""policy.yaml's section ``testing``: how many nodes run heavy checks at a time, and how soon every node is tested; and
that of a pool: what its nodes run before their first job and after each job.

Models only; :mod:`muster_tainter.verification.fleet_plan` applies them.
"""

import math
import re
from dataclasses import dataclass
from typing import Annotated

from pydantic import BeforeValidator, Field, field_validator

from muster_tainter.policy.strict_model import StrictModel

DAY_S = 86_400.0
_UNITS_S = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": DAY_S}
_TIME = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)([smhd])")
_PERCENT = re.compile(r"([0-9]{1,3})%")
_MOST_AT_ONCE = 100_000
_LONGEST_S = 366 * DAY_S

CHECK_NAME = re.compile(r"[a-z][a-z0-9]{0,62}")


@dataclass(frozen=True)
class AtOnce:
    """A number of nodes or devices, or (``percent``) a share of them."""

    count: int = 0
    percent: int | None = None

    def of(self, nodes: int) -> int:
        """The number for ``nodes`` nodes; a percentage is rounded up, as in a PodDisruptionBudget: 5 % of 8 is 1."""
        return self.count if self.percent is None else math.ceil(nodes * self.percent / 100)

    def __str__(self) -> str:
        return str(self.count) if self.percent is None else f"{self.percent}%"


def _at_once(value: object, what: str = "nodes") -> object:
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MOST_AT_ONCE:
        return AtOnce(value)
    match = _PERCENT.fullmatch(value) if isinstance(value, str) else None
    if match is None or int(match[1]) > 100:
        raise ValueError(f'expected a number of {what}, 0 to {_MOST_AT_ONCE}, or a share such as "5%"')
    return AtOnce(percent=int(match[1]))


def parse_duration(value: object, *, least_s: float = 1.0) -> float:
    """``value`` in seconds. Raises ValueError."""
    match = _TIME.fullmatch(value) if isinstance(value, str) else None
    seconds = float(match[1]) * _UNITS_S[match[2]] if match else -1.0
    if not least_s <= seconds <= _LONGEST_S:
        raise ValueError(f"expected a time of {least_s:g} s to 366 days, such as 90s, 10m, 2h or 7d")
    return seconds


def _listed(value: object) -> object:
    return (value,) if isinstance(value, str) else value


def check_names(names: tuple[str, ...]) -> tuple[str, ...]:
    for name in names:
        if not CHECK_NAME.fullmatch(name):
            raise ValueError(f"{name[:40]!r}: expected the name of a check: lowercase letters and digits")
    if len(set(names)) < len(names):
        raise ValueError("expected each check once")
    return names


Nodes = Annotated[AtOnce, BeforeValidator(_at_once)]
NodesIfAny = Annotated[AtOnce | None, BeforeValidator(_at_once)]
DevicesIfAny = Annotated[AtOnce | None, BeforeValidator(lambda value: _at_once(value, "devices"))]
Duration = Annotated[float, BeforeValidator(parse_duration)]
AnyDuration = Annotated[float, BeforeValidator(lambda value: parse_duration(value, least_s=0.0))]
"""In seconds; 0s is allowed."""
Checks = Annotated[tuple[str, ...], BeforeValidator(_listed), Field(max_length=16)]


class PoolTesting(StrictModel):
    """at_once: None: only the fleet's limit applies. post_flight: requested when a job's end leaves a node idle;
    pre_flight: what a node has to pass before it loses the taint ``muster.dev/startup``."""

    at_once: NodesIfAny = None
    post_flight: Checks = ()
    pre_flight: Checks = ()

    _names = field_validator("post_flight", "pre_flight")(check_names)


class HeavyTesting(StrictModel):
    """at_once:  over the whole fleet. By default 5 %: a round of pciebw, gpumem and dcgm takes about three minutes, so
                 an idle fleet is tested in an hour, the default interval of heavy checks, while nineteen of twenty
                 nodes remain free for jobs
    coverage: every node is tested within it, in seconds. By default a week: people should know about a node that is
              never idle for a week
    pause:    after a result that measured nothing; doubled each time, up to a day
    """

    at_once: Nodes = AtOnce(percent=5)
    coverage: Duration = 7 * DAY_S
    pause: Duration = 600.0
