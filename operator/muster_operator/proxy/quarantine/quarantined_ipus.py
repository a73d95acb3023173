"""Which IPUs are quarantined, by the ConfigMap ``muster-ipu-quarantine`` that the tainter keeps. Pure.

Each value is one line of JSON with ``machine`` and ``index``; what cannot be understood is skipped and told.
"""

from collections.abc import Mapping

import msgspec

from muster_operator.vipu.controller import Ipu


class _Entry(msgspec.Struct, frozen=True):
    machine: str
    index: int


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
