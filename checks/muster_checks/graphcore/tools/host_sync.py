"""gc-hostsynclatencytest, with -j or as text: whether host and IPU can synchronise, and how long that takes.

Source: docs.graphcore.ai, command-line-tools 1.2.3, gc-hostsynclatencytest.
"""

import re

import msgspec

from muster_checks.base.bounded_read import Unreadable, number
from muster_checks.graphcore.tools.document import read_document
from muster_checks.graphcore.tools.words import lines, name, word

_ID = re.compile(r"o Using device Id - (\d{1,9})\s*")
_TIME = re.compile(r"o Syncs took on average ([0-9.]{1,20}) us\s*")
_RESULT = re.compile(r"o Result - (\w{1,20})\s*")


class HostSync(msgspec.Struct, frozen=True):
    """``result``: ``pass``, another word from the tool, or empty if it printed none."""

    device_id: str
    time_us: float | None
    result: str


def parse(text: bytes) -> HostSync:
    """Raises Unreadable."""
    if b"o Using device Id" in text[:4096]:
        return _from_lines(lines(text))
    for entry in read_document(text):
        if entry.get("result") is not None and entry.get("ipu_id") is not None:
            time_us = number(entry.get("time_to_sync_us"))
            return HostSync(name(entry.get("ipu_id")), time_us, word(entry.get("result")).lower())
    raise Unreadable("gc-hostsynclatencytest: no ipu_id and result found")


def _from_lines(printed: list[str]) -> HostSync:
    def value(pattern: re.Pattern[str]) -> str:
        return next((found[1] for line in printed if (found := pattern.fullmatch(line))), "")

    if not value(_ID):
        raise Unreadable("gc-hostsynclatencytest: no device id found")
    return HostSync(value(_ID), number(value(_TIME)), word(value(_RESULT)).lower())
