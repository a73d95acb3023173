"""Limits of the size of a partition and of the number of parked partitions."""

from dataclasses import dataclass


@dataclass(frozen=True)
class PartitionLimits:
    """max_ipus: of one partition, a power of two; parked: partitions that keep quarantined IPUs out of use."""

    max_ipus: int = 64
    parked: int = 16


def is_power_of_two(size: int) -> bool:
    return size > 0 and size & (size - 1) == 0


def list_sizes(limit: int) -> str:
    """The allowed sizes, for people."""
    return ", ".join(str(1 << power) for power in range(limit.bit_length()))
