"""Compares a device with its equals on the same node: at half its siblings' speed it is sick, whatever a table says."""

from collections.abc import Mapping
from statistics import median


def share_of_others(values: Mapping[str, float], least: int = 2) -> dict[str, float]:
    """Each value as a share of the median of the others (1.0 = equal). Devices with fewer than ``least`` others, or
    whose others measure 0, are left out."""
    shares: dict[str, float] = {}
    for name, value in values.items():
        others = [other for sibling, other in values.items() if sibling != name]
        if len(others) >= least and (middle := median(others)) > 0:
            shares[name] = value / middle
    return shares
