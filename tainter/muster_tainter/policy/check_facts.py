"""What the declarations of the shipped checks say about their use as proof."""

from functools import lru_cache
from importlib import import_module

from muster_checks.base.declaration import Check, Cost
from muster_checks.registry import SHIPPED


@lru_cache(maxsize=256)
def is_heavy(check: str) -> bool:
    """Unknown checks count as heavy."""
    declared = _declared(check)
    return declared is None or declared.cost is Cost.HEAVY


@lru_cache(maxsize=256)
def has_period(check: str) -> bool:
    """Whether agents run it, or find it due, from time to time."""
    declared = _declared(check)
    return declared is not None and declared.period_s is not None


@lru_cache(maxsize=256)
def can_test_one_device(check: str) -> bool:
    """Whether it can test one device while jobs use the others."""
    declared = _declared(check)
    return declared is not None and bool(declared.one_device)


def _declared(check: str) -> Check | None:
    place = SHIPPED.get(check)
    if place is None:
        return None
    module, _, name = place.partition(":")
    declared: Check = getattr(import_module(module), name)
    return declared
