"""`gc-links -j`: whether each IPU-Link trained.

Source: docs.graphcore.ai, command-line-tools 1.0.45 to latest, gc-links. There are three forms: "ipu to ipu" with one
"channel" key per channel (1.0), "channels" as a list (latest), and no channels at all on a Pod, where links are trained
when the partition is created ("Links already trained - no training performed").
"""

import msgspec

from muster_checks.base.bounded_read import Unreadable, number
from muster_checks.graphcore.tools.document import JsonEntries, read_document
from muster_checks.graphcore.tools.words import name, word


class IpuLinkChannel(msgspec.Struct, frozen=True, kw_only=True):
    """One channel of an IPU-Link. Ids are device ids; ``lowest_fom``: figure of merit of the worst lane's training."""

    from_id: str
    to_id: str
    from_channel: str
    to_channel: str
    status: str
    gen: float | None = None
    lanes: float | None = None
    tries: float | None = None
    lowest_fom: float | None = None


class IpuLinks(msgspec.Struct, frozen=True):
    """``overall``: ``passed``, ``failed`` or empty; ``trained_before``: nothing was trained, so nothing was tested."""

    channels: tuple[IpuLinkChannel, ...]
    overall: str
    trained_before: bool = False


def parse(text: bytes) -> IpuLinks:
    """Raises Unreadable."""
    objects = read_document(text)
    channels = [_channel(entry, channel) for entry in objects if _is_pair(entry) for channel in _channels_of(entry)]
    results = [word(entry.get("overall result", "overall_result")).lower() for entry in objects]
    if not channels and not any(key in ("overall result", "overall_result") for entry in objects for key, _ in entry):
        raise Unreadable("gc-links: neither channels nor an overall result found")
    overall = next((verdict for verdict in ("failed", "passed") if verdict in results), "")
    warnings = " ".join(word(entry.get("warning")) for entry in objects)
    return IpuLinks(tuple(channels), overall, "already trained" in warnings)


def _is_pair(entry: JsonEntries) -> bool:
    return entry.get("from pcie id", "from_pcie_id") is not None


def _channels_of(entry: JsonEntries) -> list[JsonEntries]:
    found: list[object] = [value for key, value in entry if key == "channel"]
    listed = entry.get("channels")
    found += listed if isinstance(listed, list) and not isinstance(listed, JsonEntries) else []
    return [channel for channel in found if isinstance(channel, JsonEntries)]


def _channel(pair: JsonEntries, channel: JsonEntries) -> IpuLinkChannel:
    return IpuLinkChannel(
        from_id=name(pair.get("from pcie id", "from_pcie_id")),
        to_id=name(pair.get("to pcie id", "to_pcie_id")),
        from_channel=name(channel.get("from")),
        to_channel=name(channel.get("to")),
        status=word(channel.get("status")).lower(),
        gen=number(channel.get("gen")),
        lanes=number(channel.get("lanes")),
        tries=number(channel.get("num_tries")),
        lowest_fom=number(channel.get("lowest_fom")),
    )
