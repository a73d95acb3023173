"""The check ``ipu``: what each Graphcore IPU says of itself. Runs beside a job.

Classes: an IPU that has failed asks for ``quarantine``, never for a taint of the host: the other IPUs of its
IPU-Machine work on, and the IPU-Machine serves other hosts. Where Poplar itself says that a restart of the program
resets the IPU, it is ``restart-app``.
"""

from collections.abc import Sequence

from pydantic import Field

from muster_checks.base.declaration import Check, Cost, NodeView
from muster_checks.base.vocabulary import Finding
from muster_checks.graphcore.settings import GraphcoreParameters


class IpuParameters(GraphcoreParameters):
    # the PCIe base specification allows one bit error in 1e12 bits on each lane: 16 GT/s x 8 lanes x 3600 s x 1e-12
    max_link_errors_per_hour: float = Field(
        default=460.0, ge=0.0, description="corrected link errors an hour above which a link is degraded"
    )
    first_interval_s: float = Field(
        default=2.0, ge=0.0, le=30.0, description="between the two readings of a first run, seconds"
    )


async def _probe(node: NodeView, parameters: IpuParameters) -> Sequence[Finding]:
    from muster_checks.ipu.probe import probe

    return await probe(node, parameters)


def _recorded(text: bytes, parameters: IpuParameters) -> Sequence[Finding] | None:
    from muster_checks.ipu.sample import judge_recorded

    return judge_recorded(text, parameters)


IPU = Check(
    name="ipu",
    description="Graphcore IPUs: health, error state, link speed and width, corrected link errors by rate, sensors",
    cost=Cost.LIGHT,
    parameters=IpuParameters,
    timeout_s=90.0,
    period_s=120.0,  # a gc-info for each IPU, and each looks for all of them first
    devices=("ipu",),
    probe=_probe,
    recorded=_recorded,
    reads=(
        "gc-info -l and gc-info -d ID --device-info; the Python library gcipuinfo, else gc-monitor "
        "(all of Graphcore's Poplar SDK); /sys/bus/pci/devices"
    ),
    ran_on=(
        "recorded output from Graphcore's documentation (C2, C600, M2000) and from a user's notes (C2), not on real "
        "hardware; the text of an error state other than 'no errors' is not public, so none was at hand"
    ),
    examples=("check=ipu", "check=ipu&partition=p1"),
)
