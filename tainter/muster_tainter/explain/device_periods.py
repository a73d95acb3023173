"""Collects the periods in which a replayed policy kept single devices out of use, and what that spared."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from muster_kube.api.objects import Node
from muster_tainter.devices.losses import device_balance
from muster_tainter.devices.slices.device_map import NodeDevices
from muster_tainter.faults.desired_state import Decision
from muster_tainter.faults.lifecycle import FaultStep
from muster_tainter.faults.messages import describe_fault
from muster_tainter.faults.record.node_record import DeviceStage

DEVICE_PERIODS_LIMIT = 20_000  # kept for display; all are counted


@dataclass(frozen=True)
class DevicePeriod:
    """A period, in seconds since the epoch, in which only this device of a node was kept out of use. ended: why it
    ended, empty if it had not at the end of the log. rules, why: the rules and the fault that required it."""

    node: str
    device: str
    since: float
    until: float
    rules: str
    why: str
    ended: str = ""


@dataclass
class DeviceOutcome:
    """alone_s, spared_s: device-seconds of devices that were out alone, and of those of the same drivers that stayed in
    use beside them. left_out: periods that are counted but not kept."""

    count: int = 0
    alone_s: float = 0.0
    spared_s: float = 0.0
    periods: list[DevicePeriod] = field(default_factory=list)
    left_out: int = 0


class DevicePeriods:
    """devices_of: the devices of a node, by its name."""

    def __init__(self, devices_of: Callable[[str], NodeDevices]) -> None:
        self.outcome = DeviceOutcome()
        self._devices_of = devices_of
        self._open: dict[str, dict[str, DevicePeriod]] = {}  # by node and component
        self._lost: dict[str, tuple[float, int, int]] = {}  # by node: since when so many are out alone, and spared

    def note(self, node: Node, decision: Decision, now: float) -> None:
        """node: as after the decision."""
        name = node.metadata.name
        alone = {fault.component: fault for fault in decision.memory.open if fault.device == DeviceStage.ALONE}
        known = self._open.get(name, {})
        for component in known.keys() - alone.keys():
            self._keep(replace(known.pop(component), until=now, ended=_why_ended(component, decision)))
        for component in sorted(alone.keys() - known.keys()):
            fault = alone[component]
            self.outcome.count += 1
            self._open.setdefault(name, {})[component] = DevicePeriod(
                name, component, now, now, fault.rule, describe_fault(fault)
            )
        self._count(name, now)
        balance = device_balance(node, self._devices_of(name)).values() if alone else ()
        if balance:
            self._lost[name] = now, sum(each.alone for each in balance), sum(each.spared for each in balance)

    def finish(self, now: float) -> DeviceOutcome:
        for name, known in self._open.items():
            self._count(name, now)
            for period in known.values():
                self._keep(replace(period, until=now))
        self.outcome.periods.sort(key=lambda period: (period.since, period.node, period.device))
        return self.outcome

    def _count(self, name: str, now: float) -> None:
        since, alone, spared = self._lost.pop(name, (now, 0, 0))
        self.outcome.alone_s += alone * (now - since)
        self.outcome.spared_s += spared * (now - since)

    def _keep(self, period: DevicePeriod) -> None:
        if len(self.outcome.periods) < DEVICE_PERIODS_LIMIT:
            self.outcome.periods.append(period)
        else:
            self.outcome.left_out += 1


def _why_ended(component: str, decision: Decision) -> str:
    if any(fault.component == component for fault in decision.memory.open):
        return "its node is tainted" if decision.memory.ours else "no rule requires it"
    closed = [each for each in decision.changes if each.step is FaultStep.CLOSED and each.fault.component == component]
    return f"closed ({closed[-1].how}): {describe_fault(closed[-1].fault)}" if closed else "its fault is gone"
