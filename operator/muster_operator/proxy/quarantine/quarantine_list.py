"""The quarantined IPUs, from the ConfigMap ``muster-ipu-quarantine`` that the tainter writes.

Each value is one line of JSON with ``machine`` and ``index``; invalid entries are logged and skipped.
"""

import logging
from collections.abc import Mapping

import msgspec

from muster_operator.proxy.metrics import ProxyMetrics
from muster_operator.vipu.controller import Ipu

log = logging.getLogger(__name__)

LOGGED_LIMIT = 16  # IPUs in one log line


class _Entry(msgspec.Struct, frozen=True):
    machine: str
    index: int


class QuarantinedIpus:
    """current: IPUs that new partitions must not use; parked_limit: maximum number of parked partitions."""

    def __init__(self, metrics: ProxyMetrics, parked_limit: int) -> None:
        self._metrics = metrics
        self.parked_limit = parked_limit
        self.current: frozenset[Ipu] = frozenset()

    def update(self, data: Mapping[str, str]) -> bool:
        """Use this data of the ConfigMap; a missing ConfigMap has none. Returns whether the quarantine has changed."""
        ipus, skipped = parse_quarantine_map(data)
        for line in skipped:
            log.error("quarantine: skipping %s", line)
        if ipus == self.current:
            return False
        named = ", ".join(f"{ipu.machine}/{ipu.index}" for ipu in sorted(ipus)[:LOGGED_LIMIT]) or "none"
        more = len(ipus) - LOGGED_LIMIT
        log.info("quarantined IPUs: %s%s", named, f" and {more} more" if more > 0 else "")
        self.current = ipus
        self._metrics.quarantined.set(len(ipus))
        return True


def parse_quarantine_map(data: Mapping[str, str]) -> tuple[frozenset[Ipu], list[str]]:
    """The IPUs, and a message for each skipped entry."""
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
