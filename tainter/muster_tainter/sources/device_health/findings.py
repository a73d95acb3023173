"""Pods' reports of unhealthy devices as findings of the check ``devicehealth``, and what ends them.

A finding ends when the kubelet reports the device as healthy. A WARN also ends when no pod has reported it for an hour;
a FAIL stays, as for any other check.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial

from muster_checks.base.declaration import AllClear, Sign
from muster_checks.base.vocabulary import Verdict
from muster_kube.api.times import seconds
from muster_tainter.devices.slices.device_map import NodeDevices
from muster_tainter.fleet.interface import Fleet, record_of
from muster_tainter.policy.recovery import DEVICE_HEALTH
from muster_tainter.policy.sections.sources import DeviceHealthSource
from muster_tainter.sources.device_health.pod_status import DevicePod, HeldDevice, component_of, message_of
from muster_tainter.sources.loki.finding_tracker import QUIET_S, FindingTracker

log = logging.getLogger(__name__)

REASON = "DeviceUnhealthy"
REPEAT_S = 600.0  # a warning that a pod still reports stays open
# of one node, so that a kubelet uses up no other's; a node has a few dozen devices, and several pods may name one
REPORTS_LIMIT = 256

DevicesOf = Callable[[str], NodeDevices]
_ReportKey = tuple[str, str, str]  # pod, resource, ID


@dataclass
class _Report:
    """at: when the device became unhealthy, as far as known; sent_at: when it was last reported as a finding."""

    pod: DevicePod
    held: HeldDevice
    at: float
    sent_at: float


class DeviceHealthFindings:
    """devices_of: the devices of a node by its ResourceSlices. Times are seconds since the epoch."""

    def __init__(self, fleet: Fleet, devices_of: DevicesOf, settings: DeviceHealthSource) -> None:
        self._fleet = fleet
        self._devices_of = devices_of
        self._settings = settings
        self._reports: dict[str, dict[_ReportKey, _Report]] = {}  # by node
        self._full: set[str] = set()  # nodes with more reports, which the log names once
        self._unverified: dict[_ReportKey, DevicePod] = {}  # healthy at first sight, although a fault is open
        external = fleet.external_findings
        self._tracker = FindingTracker(DEVICE_HEALTH, partial(record_of, fleet), external.add, external.close)

    def adopt(self, now: float) -> None:
        """Take over the warnings of an earlier leader."""
        for node in list(self._fleet.nodes):
            self._tracker.adopt(node, now)

    def pod_changed(self, key: str, old: DevicePod | None, new: DevicePod | None, now: float) -> None:
        """key: namespace and name of the pod."""
        if old is not None and new is not None and old.metadata.uid != new.metadata.uid:
            self.pod_changed(key, old, None, now)  # two lists may show its successor only
            old = None
        before = {(each.resource, each.id): each for each in old.held} if old is not None else {}
        after = {(each.resource, each.id): each for each in new.held} if new is not None else {}
        for resource, device in before.keys() - after.keys():
            self._unverified.pop((key, resource, device), None)
            self._drop_report("" if old is None else old.spec.node_name, (key, resource, device))
        if new is None or new.spec.node_name not in self._fleet.nodes:
            return
        for (resource, device), held in after.items():
            report = key, resource, device
            known = before.get((resource, device))
            if held.healthy:
                self._drop_report(new.spec.node_name, report)
                if known is not None and not known.healthy:
                    self._clear(new.spec.node_name, held, now)
                elif known is None and self._is_open(new.spec.node_name, held):
                    self._unverified[report] = new
            else:
                self._unverified.pop(report, None)  # what is being read of the pod may be older than this
                # what was unhealthy when it was first seen may have been so since the pod began
                at = now if known is not None else min(now, seconds(new.status.start_time) or now)
                self._add_report(report, _Report(new, held, at, now))

    def _drop_report(self, node: str, report: _ReportKey) -> None:
        reports = self._reports.get(node, {})
        reports.pop(report, None)
        if not reports:
            self._reports.pop(node, None)

    def _add_report(self, report: _ReportKey, made: _Report) -> None:
        node = made.pod.spec.node_name
        reports = self._reports.get(node, {})
        if report in reports:
            reports[report].pod, reports[report].held = made.pod, made.held
        elif len(reports) < REPORTS_LIMIT:
            self._reports.setdefault(node, reports)[report] = made
            self._take(made, made.at)
        elif node not in self._full:
            self._full.add(node)
            log.warning("node %s: more than %d unhealthy devices of pods; the others are ignored", node, REPORTS_LIMIT)

    async def verify(self, read: Callable[[str], Awaitable[DevicePod | None]], now: float) -> None:
        """End the faults of devices that were healthy when their pods were first seen. A first list may be older than
        what the leader before this one saw, so the pod itself is asked. read: the pod by its key as etcd has it, None
        if it is gone; may raise, and all that is left is verified the next time."""
        while self._unverified:
            report, pod = next(iter(self._unverified.items()))
            key, resource, device = report
            newest = await read(key)
            if self._unverified.get(report) is not pod:
                continue  # the watch knows better by now: it is gone, unhealthy, or another pod of the same name
            del self._unverified[report]
            for held in newest.held if newest is not None and newest.metadata.uid == pod.metadata.uid else ():
                if (held.resource, held.id, held.healthy) == (resource, device, True):
                    self._clear(pod.spec.node_name, held, now)

    def _is_open(self, node: str, held: HeldDevice) -> bool:
        component = component_of(held, self._devices_of(node))
        recorded = record_of(self._fleet, node).open
        return (component, REASON) in self._tracker.nodes.get(node, ()) or any(
            fault.check == DEVICE_HEALTH and fault.component == component for fault in recorded
        )

    async def look(self, now: float) -> None:
        """What time alone changes, and what ended elsewhere. A warning that is still reported does not end."""
        self._tracker.settle(lambda _node, _key: None)
        for node in list(self._reports):
            for report in self._reports.get(node, {}).values():
                self._repeat(report, now)
            await asyncio.sleep(0)  # let taints be written
        self._tracker.tick(now)
        for node in [name for name in self._tracker.nodes if name not in self._fleet.nodes]:
            self._tracker.drop(node)

    def _repeat(self, report: _Report, now: float) -> None:
        """Report it again, if it is time."""
        if now - report.sent_at >= REPEAT_S or now < report.sent_at:
            report.sent_at = now
            is_open = (self._component(report), REASON) in self._tracker.nodes.get(report.pod.spec.node_name, ())
            self._take(report, now if is_open else report.at)

    def end_all(self, now: float) -> None:
        """The policy does not ask for them any more."""
        for node in list(self._fleet.nodes):
            for component in {f.component for f in record_of(self._fleet, node).open if f.check == DEVICE_HEALTH}:
                line = "the policy no longer asks for this"
                self._tracker.clear(node, AllClear(component=component, at=now, how="source", line=line))

    def _component(self, report: _Report) -> str:
        return component_of(report.held, self._devices_of(report.pod.spec.node_name))

    def _take(self, report: _Report, at: float) -> None:
        settings = self._settings
        sign = Sign(
            component=self._component(report),
            reason=REASON,
            verdict=Verdict(settings.verdict),
            message=message_of(report.held, report.pod),
            at=at,
            fault_class=settings.fault_class,
        )
        self._tracker.take(report.pod.spec.node_name, sign, quiet_s=QUIET_S)

    def _clear(self, node: str, held: HeldDevice, now: float) -> None:
        component = component_of(held, self._devices_of(node))
        line = f"{held.resource} {held.id} is reported as healthy"
        self._tracker.clear(node, AllClear(component=component, at=now, how="source", reasons=(REASON,), line=line))
