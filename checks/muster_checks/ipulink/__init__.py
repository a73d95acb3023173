"""The check ``ipulink``: tests that IPU-Links train, carry data and keep their speed. Uses the IPUs exclusively.

Classes: ``quarantine``, as in :mod:`muster_checks.ipu`. A link has two ends, and no tool says which one is bad: the
finding is on the end that the tool names first, and its message names both.
"""

from collections.abc import Sequence

from pydantic import Field

from muster_checks.base.declaration import Check, Cost, NodeView
from muster_checks.base.vocabulary import Finding
from muster_checks.graphcore.settings import GraphcoreParameters


class IpuLinkParameters(GraphcoreParameters):
    min_share_of_siblings: float = Field(
        default=0.5,
        ge=0.0,
        le=1.0,
        description="share of the other pairs' median traffic below which a pair of IPUs warns",
    )
    links_timeout_s: float = Field(default=120.0, ge=1.0, le=200.0, description="seconds for gc-links")
    traffic_timeout_s: float = Field(
        default=300.0, ge=1.0, le=400.0, description="seconds for gc-iputraffictest --all-links"
    )
    sync_timeout_s: float = Field(
        default=240.0, ge=1.0, le=240.0, description="seconds for gc-hostsynclatencytest on all IPUs together"
    )


async def _probe(node: NodeView, parameters: IpuLinkParameters) -> Sequence[Finding]:
    from muster_checks.ipulink.probe import probe

    return await probe(node, parameters)


def _recorded(text: bytes, parameters: IpuLinkParameters) -> Sequence[Finding] | None:
    from muster_checks.ipulink.sample import judge_recorded

    return judge_recorded(text, parameters)


IPULINK = Check(
    name="ipulink",
    description="IPU-Links: channel training, traffic between IPUs, sync with the host, state of V-IPU partitions",
    cost=Cost.HEAVY,
    parameters=IpuLinkParameters,
    timeout_s=900.0,
    period_s=3600.0,
    devices=("ipu",),
    probe=_probe,
    recorded=_recorded,
    reads=(
        "gc-info, gc-links -j, gc-iputraffictest --all-links -j, gc-hostsynclatencytest -d ID -j (Graphcore's Poplar "
        "SDK); vipu list partitions (Graphcore's V-IPU command line) if a V-IPU controller is configured"
    ),
    ran_on=(
        "recorded output from Graphcore's documentation (gc-links 1.0.51 and latest, gc-iputraffictest and "
        "gc-hostsynclatencytest 1.2.3, vipu), not on real hardware; the output of gc-iputraffictest --all-links is not "
        "public and is read as several of the documented objects"
    ),
    examples=("check=ipulink", "check=ipulink&partition=p1&vipu_api_host=10.1.5.1"),
)
