"""gcipuinfo's checkHealthOfDevices(): the IPUs that have failed. ``{}`` if there are none.

Source: docs.graphcore.ai, gcipuinfo, "Device health check":

    {"hosts": {"10.1.5.10": [{"error": "device", "id": "2", "partition": "p1", "board ipu index": "1"}]}}

``device``: the IPU, an RNIC or another part of the IPU-Machine has failed; ``connection``: the IPU-Machine cannot be
reached over the network. If the check itself could not run, the library returns a description instead.
"""

import msgspec

from muster_checks.base.bounded_read import Unreadable, json_document
from muster_checks.graphcore import component_of
from muster_checks.graphcore.tools.words import name, word


class UnhealthyIpu(msgspec.Struct, frozen=True):
    """One failed IPU. ``error``: ``device``, ``connection`` or a word that is not in the documentation."""

    component: str
    device_id: str
    partition: str
    error: str


def parse(text: bytes) -> list[UnhealthyIpu]:
    """The IPUs that have failed. Raises Unreadable, with the library's description if the check did not run."""
    try:
        document = json_document(text)
    except Unreadable:
        printed = text[:160].decode("utf-8", "replace").strip()
        raise Unreadable(f"gcipuinfo: the health check did not run: {printed or 'no output'}") from None
    if document == {}:
        return []
    hosts = document.get("hosts") if isinstance(document, dict) else None
    if not isinstance(hosts, dict):
        raise Unreadable("gcipuinfo: expected {} or an object of hosts")
    found = []
    for host, listed in hosts.items():
        if not isinstance(listed, list) or not all(isinstance(entry, dict) for entry in listed):
            raise Unreadable(f"gcipuinfo: expected a list of IPUs under {str(host)[:60]!r}")
        for entry in listed:
            device_id, index = name(entry.get("id")), name(entry.get("board ipu index"))
            component = component_of(name(host), index, "", device_id)
            found.append(UnhealthyIpu(component, device_id, name(entry.get("partition")), word(entry.get("error"))))
    return found
