"""Which faults keep only their device out of use, and not the node. Pure functions.

A fault's ``device`` in the node record is the only state: the DeviceTaintRules are written from it, and the taint of
the Node is decided by it in the same PATCH. The stronger measure always comes first. From the device to the node, the
PATCH that sets the taint drops the device from the record, and only then its rules are removed. From the node to the
device, the fault is ``wanted`` while its rules are written, and its taint goes once all of them are there. So it is
where the same decision taints the node for another fault.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import msgspec

from muster_checks.base.vocabulary import shorten
from muster_checks.hardware.pci import normal_address
from muster_kube.api.times import rfc3339_whole, seconds
from muster_tainter.faults.decision_context import DeviceContext, KnownDevice
from muster_tainter.faults.messages import MESSAGE_LIMIT, Notice
from muster_tainter.faults.node_report import FaultKey
from muster_tainter.faults.policy_match import FaultPolicy, board_key, confirmed_at, match_as_node, penalty_now
from muster_tainter.faults.record.node_record import (
    PENALTY_LEAST,
    PENALTY_LIMIT,
    DeviceStage,
    Fault,
    FlapPenalty,
    NodeRecord,
    OurTaint,
)
from muster_tainter.policy.rules import Policy

DEVICE_KINDS = ("gpu", "nic")  # of which a node has several; a switch, a bridge or the host is shared
_DEVICE = re.compile(rf"(?:{'|'.join(DEVICE_KINDS)})/([0-9A-Za-z][0-9A-Za-z.:-]{{0,63}})")
_NIC = re.compile(r"nic/([a-z][a-z0-9_]{1,30})")  # by its RDMA device or interface
_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_UUID = re.compile(r"(?:GPU-)?[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")

_KEPT = (DeviceStage.ALONE, DeviceStage.WANTED)
_SILENT = ""  # a refusal that is not worth an Event: the policy says so


def device_key(component: str) -> str | None:
    """The PCI address (``0000:3b:00.0``) or UUID in a component's name, or the name of a NIC (``mlx5_0``), of which the
    agent reports the address; None if it names no single device so."""
    match = _DEVICE.fullmatch(component)
    identity = None if match is None else device_identity(match[1])
    if identity is None and (named := _NIC.fullmatch(component)):
        return named[1]
    return identity


def device_identity(text: str) -> str | None:
    """``text`` as a PCI address or a UUID, in the form in which both are compared; None if it is neither."""
    if _UUID.fullmatch(text):
        return text
    address = normal_address(text)
    return address if _ADDRESS.fullmatch(address) else None


@dataclass(frozen=True)
class Isolation:
    """memory: with the stage of each fault
    waiting:  faults for which there is neither a rule nor a taint, because no further device may be quarantined now
    withheld: why; empty if there are none
    refused:  by component: why the node is tainted although the rule names the device
    """

    memory: NodeRecord
    waiting: frozenset[FaultKey] = frozenset()
    withheld: str = ""
    refused: Mapping[str, str] = field(default_factory=dict)


def isolated_components(memory: NodeRecord) -> frozenset[str]:
    """The components that count against budgets of devices."""
    return frozenset(fault.component for fault in memory.open if fault.device in _KEPT)


def isolate_devices(
    memory: NodeRecord,
    before: NodeRecord,
    policy: Policy,
    now: float,
    context: DeviceContext,
    *,
    idle: bool,
    node_withheld: bool = False,
) -> Isolation:
    """The stage of each open fault. before: the record as stored; now: seconds since the epoch.

    idle: no job uses the node's accelerators; node_withheld: the node cannot be tainted now, so devices that are kept
    out stay so, and too many of them are better than none
    """
    if policy.devices.quarantine == "off" and not any(fault.device for fault in (*memory.open, *before.open)):
        return Isolation(memory)
    groups = _group(memory, policy, now)
    earlier = {fault.component: fault.device for fault in before.open if fault.device}
    tainted = {
        component
        for component, faults in groups.items()
        if any(want.taint in before.ours for _, want in faults)  # ours: on the node, or to be set again
    }
    refused: dict[str, str] = {}
    candidates: dict[str, KnownDevice | None] = {}
    for component, faults in groups.items():
        why, known = _refusal(component, faults, policy, context, idle, earlier, component in tainted)
        if why is None:
            candidates[component] = known
        else:
            refused[component] = why
    if not node_withheld:
        for component, why in _too_many(candidates, policy):
            del candidates[component]
            refused[component] = why
    if not node_withheld:
        # tainted by this decision: that taint must not go before the rules are there
        others = _taints_of_others(memory, candidates, policy, now)
        tainted |= {each for each in candidates if any(want.taint in others for _, want in groups[each])}
    stages: dict[str, str] = {}
    waiting: set[FaultKey] = set()
    for component, known in candidates.items():
        stage = _stage(earlier.get(component, ""), known, policy, context, tainted=component in tainted)
        if node_withheld and stage == DeviceStage.PREVIEW:
            stage = earlier.get(component, DeviceStage.PREVIEW)
        if stage is None:
            waiting.update(fault.key for fault, _ in groups[component])
        else:
            stages[component] = stage
    if node_withheld:
        stages |= {component: stage for component, stage in earlier.items() if component in refused}
    memory = _with_stages(memory, {key: stages[key] for key in groups if key in stages}, groups)
    memory = _with_boards(memory, candidates, policy, now)
    return Isolation(memory, frozenset(waiting), context.withhold if waiting else "", refused)


def _group(memory: NodeRecord, policy: Policy, now: float) -> dict[str, list[tuple[Fault, FaultPolicy]]]:
    """Faults that require a taint now, by component, if it may be a single device."""
    groups: dict[str, list[tuple[Fault, FaultPolicy]]] = {}
    for fault in memory.open:
        want = match_as_node(fault, policy)
        if want.taint is None or fault.rest or confirmed_at(fault, want, now) > now:
            continue
        if device_key(fault.component) is not None:
            groups.setdefault(fault.component, []).append((fault, want))
    return groups


def _taints_of_others(
    memory: NodeRecord, candidates: Mapping[str, object], policy: Policy, now: float
) -> set[OurTaint | None]:
    """What the faults require now that are not of a candidate."""
    return {
        want.taint
        for fault in memory.open
        if fault.component not in candidates
        and (want := match_as_node(fault, policy)).taint is not None
        and confirmed_at(fault, want, now) <= now
    }


def _refusal(
    component: str,
    faults: Iterable[tuple[Fault, FaultPolicy]],
    policy: Policy,
    context: DeviceContext,
    idle: bool,
    earlier: Mapping[str, str],
    tainted: bool,
) -> tuple[str | None, KnownDevice | None]:
    """(why the device cannot be kept out alone, or None; what is known of it)."""
    modes = {want.isolate for _, want in faults}
    if policy.devices.quarantine == "off" or "node" in modes:
        return _SILENT, None
    if "device-first" in modes and (idle or (tainted and not earlier.get(component))):
        return _SILENT, None
    if context.unread:
        return (None, None) if earlier.get(component) else ("the ResourceSlices are not read yet", None)
    if context.unavailable:
        return context.unavailable, None
    known = context.known.get(device_key(component) or "")
    if known is None:
        return "no ResourceSlice of this node names it", None
    return (known.problem, None) if known.problem else (None, known)


def _too_many(candidates: Mapping[str, KnownDevice | None], policy: Policy) -> list[tuple[str, str]]:
    """Components whose driver has more bad devices on the node than the policy's share, and why they are refused."""
    bad: dict[str, list[str]] = {}
    devices: dict[str, int] = {}
    for component, known in candidates.items():
        if known is not None:
            bad.setdefault(known.driver, []).append(component)
            devices[known.driver] = max(devices.get(known.driver, 0), known.siblings)
    result = []
    for driver, components in bad.items():
        number = devices[driver]
        if number and policy.devices.too_many(len(components), number):
            why = f"{len(components)} of {number} devices are bad, more than {policy.devices.share}"
            result += [(component, why) for component in components]
    return result


def _stage(
    earlier: str, known: KnownDevice | None, policy: Policy, context: DeviceContext, *, tainted: bool
) -> str | None:
    """The stage of a device that can be kept out alone; None if it has to wait."""
    if policy.devices.quarantine == "preview":
        return DeviceStage.PREVIEW
    if earlier == DeviceStage.ALONE or (known is None and earlier):
        return earlier
    if earlier != DeviceStage.WANTED and context.withhold:
        return "" if tainted else None
    if not tainted:
        return DeviceStage.ALONE
    return DeviceStage.ALONE if known is not None and known.ruled else DeviceStage.WANTED


def _with_stages(memory: NodeRecord, stages: Mapping[str, str], groups: Mapping[str, object]) -> NodeRecord:
    """Faults that do not require a taint yet get no stage."""
    opened = tuple(
        _with_stage(fault, stages.get(fault.component, "") if fault.component in groups else "")
        for fault in memory.open
    )
    return memory if opened == memory.open else msgspec.structs.replace(memory, open=opened)


def _with_stage(fault: Fault, stage: str) -> Fault:
    return fault if fault.device == stage else msgspec.structs.replace(fault, device=stage)


def _with_boards(memory: NodeRecord, known: Mapping[str, KnownDevice | None], policy: Policy, now: float) -> NodeRecord:
    """Faults whose device is kept out alone remember its board, and take over the flap penalties that the board has
    from nodes which it has left."""
    penalty = memory.penalty
    opened = []
    for fault in memory.open:
        device = known.get(fault.component)
        if device is not None and device.board and not fault.board and fault.device in _KEPT:
            fault = msgspec.structs.replace(fault, board=device.board)
            key, earlier = board_key(fault), device.history.get(fault.check)
            n = 0.0 if earlier is None else policy.hold_down.decayed(earlier.n, now - seconds(earlier.at))
            if n >= max(PENALTY_LEAST, penalty_now(memory, key, now, policy)):
                penalty = {**penalty, key: FlapPenalty(n=min(round(n, 3), PENALTY_LIMIT), at=rfc3339_whole(now))}
        opened.append(fault)
    if penalty is memory.penalty and tuple(opened) == memory.open:
        return memory
    return msgspec.structs.replace(memory, open=tuple(opened), penalty=penalty)


def isolation_notices(isolation: Isolation, before: NodeRecord, policy: Policy) -> list[Notice]:
    """Events for faults whose rule names the device, and whose node is tainted all the same: once for each fault, when
    it is opened or when its device was kept out before."""
    if policy.devices.quarantine == "off":
        return []
    earlier = {fault.key: fault.device for fault in before.open}
    notices = []
    for fault in isolation.memory.open:
        why = isolation.refused.get(fault.component, "")
        if why and not fault.device and earlier.get(fault.key, DeviceStage.ALONE) == DeviceStage.ALONE:
            text = shorten(f"{fault.component} is not quarantined alone: {why}", MESSAGE_LIMIT)
            notices.append(Notice("DeviceNotQuarantined", text, fault.component))
    return list(dict.fromkeys(notices))
