"""Which IPUs are quarantined, by the ConfigMap ``muster-ipu-quarantine`` that the tainter keeps.

Each value is one line of JSON with ``machine`` and ``index``; what cannot be understood is skipped and told.
"""

import logging
from collections.abc import Mapping

import msgspec

from muster_operator.proxy.metrics import ProxyMetrics
from muster_operator.vipu.controller import Ipu

log = logging.getLogger(__name__)

LOGGED_LIMIT = 16  # IPUs in one line of the log


class _Entry(msgspec.Struct, frozen=True):
    machine: str
    index: int


class QuarantinedIpus:
    """current: the IPUs that are kept out of new partitions now; parked_limit: how many partitions may do that."""

    def __init__(self, metrics: ProxyMetrics, parked_limit: int) -> None:
        self._metrics = metrics
        self.parked_limit = parked_limit
        self.current: frozenset[Ipu] = frozenset()

    def update(self, data: Mapping[str, str]) -> bool:
        """The ConfigMap's data is this from now on; a missing one has none. Whether other IPUs are quarantined now."""
        ipus, skipped = parse_quarantine_map(data)
        for line in skipped:
            log.error("quarantine: %s: skipped", line)
        if ipus == self.current:
            return False
        named = ", ".join(f"{ipu.machine}/{ipu.index}" for ipu in sorted(ipus)[:LOGGED_LIMIT]) or "none"
        more = len(ipus) - LOGGED_LIMIT
        log.info("quarantined IPUs: %s%s", named, f" and {more} more" if more > 0 else "")
        self.current = ipus
        self._metrics.quarantined.set(len(ipus))
        return True


def parse_quarantine_map(data: Mapping[str, str]) -> tuple[frozenset[Ipu], list[str]]:
    """The IPUs, and what is wrong with entries that are skipped."""
    ipus: set[Ipu] = set()
    skipped: list[str] = []
    for key, text in sorted(data.items()):
        try:
            entry = msgspec.json.decode(text, type=_Entry)
        except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
            skipped.append(f"{key}: {error}; expected JSON with machine and index")
            continue
        ipus.add(Ipu(entry.machine, entry.index))
    return frozenset(ipus), skipped
