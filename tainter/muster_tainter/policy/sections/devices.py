"""policy.yaml's section ``devices``: whether one GPU or NIC is kept out of use instead of its whole node.

Models only; :mod:`muster_tainter.faults.device_isolation` applies them.
"""

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from muster_checks.base.vocabulary import FaultClass
from muster_tainter.policy.sections.heavy_checks import Duration
from muster_tainter.policy.strict_model import StrictModel

Isolation = Literal["node", "device", "device-first"]
# of faults whose rule does not say: a reboot, and whatever a person has to look at, concern the whole machine
ISOLATION_BY_CLASS: dict[str, Isolation] = {FaultClass.RESET: "device", FaultClass.REPLACE: "device"}


def _mode(value: object) -> object:
    return "off" if value is False else value  # YAML 1.1 reads a bare `off` as false


class Devices(StrictModel):
    """quarantine: off: taint the node; preview: taint the node, and show by rules without effect which devices would be
                kept out; rules: keep out the device by a DeviceTaintRule, where one is possible
    share:      of a node's devices of one driver; if more of them are bad, the node is tainted. 50 %: most of the node
                is lost then, and what they share (a power supply, a switch, the driver) is the likelier cause
    grace:      seconds for which a device that no ResourceSlice names any more keeps its quarantine. A kubelet removes
                the slices of a driver 30 s after the driver has gone; a driver that is upgraded takes minutes
    """

    quarantine: Annotated[Literal["off", "preview", "rules"], BeforeValidator(_mode)] = "off"
    share: Annotated[str, Field(pattern=r"^([0-9]|[1-9][0-9]|100)%$")] = "50%"
    grace: Duration = 600.0

    def too_many(self, bad: int, devices: int) -> bool:
        """Whether ``bad`` of a node's ``devices`` are more than the share."""
        return bad * 100 > devices * int(self.share[:-1])
