"""Which sizes a partition may have, and how many partitions may be parked."""

from dataclasses import dataclass


@dataclass(frozen=True)
class PartitionLimits:
    """max_ipus: of one partition, a power of two; parked: partitions that keep quarantined IPUs out of use."""

    max_ipus: int = 64
    parked: int = 16


def is_power_of_two(size: int) -> bool:
    return size > 0 and size & (size - 1) == 0


def list_sizes(limit: int) -> str:
    """What is allowed, for people."""
    return ", ".join(str(1 << power) for power in range(limit.bit_length()))
