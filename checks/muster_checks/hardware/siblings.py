"""Compares a device with equal devices on the same node: one at half the speed of the others is faulty."""

from collections.abc import Mapping
from statistics import median


def share_of_others(values: Mapping[str, float], least: int = 2) -> dict[str, float]:
    """Each value as a share of the median of the others (1.0 = equal), without devices that have fewer than ``least``
    others or whose others measure 0."""
    shares: dict[str, float] = {}
    for name, value in values.items():
        others = [other for sibling, other in values.items() if sibling != name]
        if len(others) >= least and (middle := median(others)) > 0:
            shares[name] = value / middle
    return shares
