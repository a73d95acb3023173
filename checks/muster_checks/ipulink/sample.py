"""Judges recorded output of the link tests; the tool is recognised from the text itself."""

import re

from muster_checks.base.vocabulary import Finding
from muster_checks.graphcore.models import ipu_models
from muster_checks.graphcore.tools import host_sync, ipu_traffic, links, partitions
from muster_checks.ipulink import IpuLinkParameters
from muster_checks.ipulink.judge import judge_links, judge_partitions, judge_sync, judge_traffic, name_component

LOOKED_AT_BYTES = 1 << 20
_LINKS = re.compile(rb'"(?:from[ _]pcie[ _]id|overall[ _]result)"\s*:')
_SYNC = re.compile(rb'"time_to_sync_us"\s*:|^o Using device Id', re.M)
_PARTITIONS = re.compile(rb"^[^\n]{0,200}Partition +\|[^\n]{0,400}\bState\b", re.M)


def judge_recorded(text: bytes, parameters: IpuLinkParameters) -> list[Finding] | None:
    beginning = text[:LOOKED_AT_BYTES]
    # none of these outputs names the board, so only an operator's row for "*" applies
    expected = ipu_models(parameters.expected).of("")
    if _LINKS.search(beginning):
        return judge_links(links.parse(text), expected, {})
    if re.search(rb'"device0"\s*:', beginning):
        return judge_traffic(ipu_traffic.parse(text), expected, parameters.min_share_of_siblings, {})
    if _SYNC.search(beginning):
        sync = host_sync.parse(text)
        return [judge_sync(sync, name_component({}, sync.device_id))]
    if _PARTITIONS.search(beginning):
        return judge_partitions(partitions.parse(text), parameters.partition)
    return None
