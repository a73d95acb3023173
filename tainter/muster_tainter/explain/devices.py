"""The devices of a node as text: who keeps which of them out, and what Muster itself knows of those. Pure functions."""

from collections.abc import Iterable, Iterator

from muster_checks.base.vocabulary import shorten
from muster_kube.api.times import seconds
from muster_tainter.devices.device_states import DeviceMark, DeviceState
from muster_tainter.devices.losses import FaultCost
from muster_tainter.explain.durations import lasted

_WHO = {
    DeviceMark.WITHHELD: "bad, but not kept out",
    DeviceMark.WITH_NODE: "bad, its node is tainted",
    DeviceMark.ALONE: "kept out alone by Muster",
    DeviceMark.FAULTY: "has an open fault",
    DeviceMark.BY_DRIVER: "kept out by its driver",
    DeviceMark.WORKING: "in use",
}


def format_devices(states: Iterable[DeviceState], now: float) -> Iterator[str]:
    """For each driver a line, and below it one for each device that is out or that the driver has tainted; nothing for
    drivers without such a device. now: seconds since the epoch."""
    by_driver: dict[str, list[DeviceState]] = {}
    for state in states:
        by_driver.setdefault(state.driver, []).append(state)
    for driver, own in by_driver.items():
        worth = [state for state in own if state.mark is not DeviceMark.WORKING or state.taints]
        if not worth:
            continue
        working = sum(state.mark is DeviceMark.WORKING for state in own)
        yield shorten(f"devices of {driver}: {working} of {len(own)} in use")
        for state in worth:
            names = f" ({', '.join(state.names)})" if state.names else ""
            yield shorten(f"  {state.device}{names} {_WHO[state.mark]}: {'; '.join(_reasons(state, now))}", 1024)


def _reasons(state: DeviceState, now: float) -> Iterator[str]:
    for taint in state.taints:
        since = f" since {_ago(taint.since, now)}" if taint.since else ""
        yield f"taint {taint.text} by the driver{since}"
    if state.fault is not None:
        yield f"fault {state.fault.check} {state.fault.reason}, open since {_ago(state.fault.since, now)}"
    elif state.taints:
        yield "Muster has no open fault of it"
    if state.closed is not None:
        closed = state.closed
        by = f" ({closed.by})" if closed.by else ""
        yield f"{closed.check} {closed.reason} closed {_ago(closed.closed_at, now)} by {closed.how or 'unknown'}{by}"
    if state.problem:
        yield f"cannot be kept out alone: {state.problem}"


def format_cost(cost: FaultCost) -> str:
    """``1 of 8 devices for 2h 13m: 2.2 device-hours; a taint of the node would have cost 17.7``."""
    other = (
        f"a taint of the node would have cost {cost.device_hours(cost.devices):.1f}"
        if cost.alone
        else f"the device alone would have cost {cost.device_hours(1):.1f}"
    )
    lost = 1 if cost.alone else cost.devices
    hours = cost.device_hours(lost)
    return f"{lost} of {cost.devices} devices for {lasted(cost.open_s)}: {hours:.1f} device-hours; {other}"


def _ago(at: str, now: float) -> str:
    then = seconds(at)
    return f"{lasted(now - then)} ago" if then else "an unknown time"
