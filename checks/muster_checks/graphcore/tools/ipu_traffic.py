"""gc-iputraffictest -j: the bandwidth between two IPUs, and whether the data arrives unchanged.

Source: docs.graphcore.ai, command-line-tools 1.2.3, gc-iputraffictest. ``gbps`` is 1e9 bits a second, both directions
together (the documentation gives 423.3 for 3.90625 GiB in 0.0793 s). The output of `--all-links` is not public: every
object with device0, device1 and gbps is read, regardless of number and position.
"""

import msgspec

from muster_checks.base.bounded_read import Unreadable, integer, number
from muster_checks.graphcore.tools.document import read_document
from muster_checks.graphcore.tools.words import name


class Transfer(msgspec.Struct, frozen=True):
    """A transfer between two IPUs. ``errors``: words that arrived corrupted; None if unknown."""

    device0: str
    device1: str
    gbit_per_s: float | None
    errors: int | None


def parse(text: bytes) -> list[Transfer]:
    """Raises Unreadable."""
    found = [
        Transfer(
            device0=name(entry.get("device0")),
            device1=name(entry.get("device1")),
            gbit_per_s=number(entry.get("gbps")),
            errors=integer(entry.get("errors")),
        )
        for entry in read_document(text)
        if {"device0", "device1", "gbps"} <= {key for key, _ in entry}
    ]
    if not found:
        raise Unreadable("gc-iputraffictest: no device0, device1 and gbps found")
    return found
