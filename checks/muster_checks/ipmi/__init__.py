"""The check ``ipmi``: the event log and the sensors of the management controller (BMC)."""

from collections.abc import Sequence

from pydantic import Field

from muster_checks.base.declaration import Check, Cost, NodeView, Parameters
from muster_checks.base.vocabulary import Finding


class IpmiParameters(Parameters):
    window_s: float = Field(
        default=86_400.0, gt=0, description="maximum age of an event log entry, seconds, by the BMC's own clock"
    )
    entries: int = Field(default=256, ge=1, le=4096, description="number of newest entries to read")


async def _probe(node: NodeView, parameters: IpmiParameters) -> Sequence[Finding]:
    from muster_checks.ipmi.probe import probe

    return await probe(node, parameters)


def _recorded(text: bytes, parameters: IpmiParameters) -> Sequence[Finding] | None:
    from muster_checks.ipmi.probe import judge_recorded

    return judge_recorded(text, parameters)


IPMI = Check(
    name="ipmi",
    description="the BMC's event log and sensors: memory, CPU, bus, power, fans, temperatures",
    cost=Cost.LIGHT,
    parameters=IpmiParameters,
    timeout_s=90.0,
    devices=("host",),
    # a BMC answers slowly, and its log changes rarely
    period_s=600.0,
    probe=_probe,
    recorded=_recorded,
    reads="ipmitool sel time get, sel elist, sensor (ipmitool)",
    ran_on="lines in the published forms of ipmitool and (only recorded) FreeIPMI, not on a real BMC",
    examples=("check=ipmi", "check=ipmi&window_s=3600"),
)
