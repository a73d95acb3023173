"""The check ``ipu``: the state that each Graphcore IPU reports. Runs beside a job.

Classes: a failed IPU asks for ``quarantine``, never for a taint of the host: the other IPUs of its IPU-Machine keep
working, and the IPU-Machine serves other hosts. If Poplar itself reports that restarting the program resets the IPU,
the class is ``restart-app``.
"""

from collections.abc import Sequence

from pydantic import Field

from muster_checks.base.declaration import Check, Cost, NodeView
from muster_checks.base.vocabulary import Finding
from muster_checks.graphcore.settings import GraphcoreParameters


class IpuParameters(GraphcoreParameters):
    # the PCIe base specification allows one bit error per 1e12 bits on each lane: 16 GT/s x 8 lanes x 3600 s x 1e-12
    max_link_errors_per_hour: float = Field(
        default=460.0, ge=0.0, description="corrected link errors per hour above which a link is degraded"
    )
    first_interval_s: float = Field(
        default=2.0, ge=0.0, le=30.0, description="seconds between the two readings of the first run"
    )


async def _probe(node: NodeView, parameters: IpuParameters) -> Sequence[Finding]:
    from muster_checks.ipu.probe import probe

    return await probe(node, parameters)


def _recorded(text: bytes, parameters: IpuParameters) -> Sequence[Finding] | None:
    from muster_checks.ipu.sample import judge_recorded

    return judge_recorded(text, parameters)


IPU = Check(
    name="ipu",
    description="Graphcore IPUs: health, error state, link speed and width, rate of corrected link errors, sensors",
    cost=Cost.LIGHT,
    parameters=IpuParameters,
    timeout_s=90.0,
    period_s=120.0,  # each IPU needs a gc-info, and each gc-info first scans all IPUs
    devices=("ipu",),
    probe=_probe,
    recorded=_recorded,
    reads=(
        "gc-info -l and gc-info -d ID --device-info; the Python library gcipuinfo, or gc-monitor without it "
        "(all part of Graphcore's Poplar SDK); /sys/bus/pci/devices"
    ),
    ran_on=(
        "recorded output from Graphcore's documentation (C2, C600, M2000) and from a user's notes (C2), not on real "
        "hardware; the text of an error state other than 'no errors' is not public, so it could not be tested"
    ),
    examples=("check=ipu", "check=ipu&partition=p1"),
)
