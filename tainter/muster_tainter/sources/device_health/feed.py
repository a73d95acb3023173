"""Watches the status of running pods for devices that are reported as unhealthy, while this process leads and the
policy asks for it (``sources.deviceHealth``), and reports them as findings of the check ``devicehealth``.

Of the cluster's pods, only those are kept that hold devices whose health is reported. Nothing is stored: a new leader
reads the pods again, and a report of a pod that started before its fault was closed does not open it again.
"""

import asyncio
import logging
from contextlib import suppress

from muster_kube.api.client import KubeClient
from muster_kube.api.errors import ApiError, ConfigError, NotFound
from muster_kube.controller.reflector import Reflector
from muster_tainter.fleet.interface import Fleet
from muster_tainter.fleet.replica import Replica
from muster_tainter.policy.sections.sources import DeviceHealthSource
from muster_tainter.sources.device_health.findings import DeviceHealthFindings, DevicesOf
from muster_tainter.sources.device_health.pod_status import DevicePod, slim_pod
from muster_tainter.sources.source_status import SourceMetrics, SourceStatus

log = logging.getLogger(__name__)

SOURCE = "deviceHealth"  # as in muster_tainter_source_up
PATH = "/api/v1/pods"
RUNNING = {"fieldSelector": "status.phase=Running"}
REST_S = 0.1  # the watch of pods may have a hundred events a second
PERIOD_S = 10.0


class DevicePods(dict[str, DevicePod]):
    """The reflector's store: pods that hold devices."""

    def __setitem__(self, key: str, pod: DevicePod) -> None:
        if pod.held:
            super().__setitem__(key, pod)
        else:
            self.pop(key, None)


class DeviceHealthFeed:
    """What runs on the leader. devices_of: the devices of a node by its ResourceSlices."""

    def __init__(
        self, client: KubeClient, fleet: Fleet, replica: Replica, metrics: SourceMetrics, devices_of: DevicesOf
    ) -> None:
        self._client = client
        self._fleet = fleet
        self._replica = replica
        self._status = SourceStatus(metrics)
        self._up = metrics.up
        self._devices_of = devices_of
        self._changed = asyncio.Event()
        self._settings: DeviceHealthSource | None = None

    def note(self, name: str) -> None:
        """Nodes do not matter: faults that were closed are found every ten seconds."""

    def look_at_all(self) -> None:
        """The policy may have changed; only then does it begin anew."""
        if self._fleet.policy().sources.device_health != self._settings:
            self._changed.set()

    async def run(self) -> None:
        """Runs until cancelled; reports nothing before or after."""
        while True:
            self._changed.clear()
            self._settings = settings = self._fleet.policy().sources.device_health
            if settings is None:
                DeviceHealthFindings(self._fleet, self._devices_of, DeviceHealthSource()).end_all(self._replica.now())
                await self._changed.wait()
                continue
            with self._status.followed([SOURCE]):
                await self._watch_under(settings)

    async def _watch_under(self, settings: DeviceHealthSource) -> None:
        """Returns when the policy has changed."""
        findings = DeviceHealthFindings(self._fleet, self._devices_of, settings)
        findings.adopt(self._replica.now())
        pods: Reflector[DevicePod] = Reflector(
            self._client,
            PATH,
            DevicePod,
            on_change=lambda key, old, new: findings.pod_changed(key, old, new, self._replica.now()),
            params=RUNNING,
            transform=slim_pod,
            objects=DevicePods(),
            rest_s=REST_S,
            clock=self._replica.timing,
        )
        watching = asyncio.create_task(pods.run())
        try:
            while not self._changed.is_set():
                self._up.labels(SOURCE).set(pods.connected)
                if pods.synced:
                    await findings.look(self._replica.now())
                    await self._verify(findings)
                if watching.done():
                    watching.result()
                with suppress(TimeoutError):
                    async with asyncio.timeout(PERIOD_S):
                        await self._changed.wait()
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)

    async def _verify(self, findings: DeviceHealthFindings) -> None:
        try:
            await findings.verify(self._read, self._replica.now())
        except (ApiError, ConfigError) as error:
            log.warning("cannot read a pod whose device is reported as healthy: %s; will retry", error)

    async def _read(self, key: str) -> DevicePod | None:
        namespace, _, name = key.partition("/")
        with suppress(NotFound):
            return slim_pod(await self._client.get(f"/api/v1/namespaces/{namespace}/pods/{name}", type=DevicePod))
        return None
