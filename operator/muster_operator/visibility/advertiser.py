"""Keeps the numbers of IPUs on the nodes current, while this replica leads.

Level-triggered: each round compares all nodes with what they should have, and writes only those that differ.
"""

import asyncio
import contextlib
import logging
from collections.abc import Iterator

from muster_kube.api.client import KubeClient
from muster_kube.api.errors import ApiError, NotFound
from muster_kube.controller.leader_client import NotLeading
from muster_kube.controller.reflector import Reflector
from muster_operator.observe.node_capacity import FleetNode
from muster_operator.visibility.advertisement import Advertising, NodePatch, plan_patch
from muster_operator.visibility.ipu_capacity import IpuCapacity

log = logging.getLogger(__name__)

AT_ONCE = 4  # writes
SPACING_S = 1.0  # between two rounds
RETRY_S = 10.0  # after a write that failed
MANAGER = "muster-operator"


class IpuAdvertiser:
    def __init__(
        self, client: KubeClient, nodes: Reflector[FleetNode], capacity: IpuCapacity, advertising: Advertising
    ) -> None:
        self._client = client
        self._nodes = nodes
        self._capacity = capacity
        self._advertising = advertising
        self._wake = asyncio.Event()
        self._warned = ""

    def note_change(self) -> None:
        """Nodes or numbers may have changed."""
        self._wake.set()

    async def run(self) -> None:
        """Runs until cancelled."""
        await self._nodes.wait_synced()
        while True:
            self._wake.clear()
            failed = await self.write_all()
            await asyncio.sleep(SPACING_S)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(RETRY_S if failed else None):
                    await self._wake.wait()

    async def write_all(self) -> bool:
        """One round. Returns whether a write failed."""
        if self._capacity.is_starting:
            return False
        controllers = self._capacity.read() or ()
        nodes = list(self._nodes.store.values())
        patches = [patch for node in nodes if (patch := plan_patch(node, controllers, self._advertising)) is not None]
        left = iter(patches)
        async with asyncio.TaskGroup() as group:
            workers = [group.create_task(self._write(left)) for _ in range(min(AT_ONCE, len(patches)))]
        errors = [error for each in workers for error in each.result()]
        if errors and str(errors[0]) != self._warned:
            log.warning("cannot write the IPUs of %d of %d nodes: %s", len(errors), len(patches), errors[0])
        self._warned = str(errors[0]) if errors else ""
        return bool(errors)

    async def _write(self, left: Iterator[NodePatch]) -> list[ApiError]:
        errors: list[ApiError] = []
        for patch in left:
            try:
                params = {"fieldManager": MANAGER}
                self._nodes.observe(await self._client.patch(patch.path, patch.body, type=FleetNode, params=params))
            except (NotFound, NotLeading):
                continue  # nothing to write to, or another replica's
            except ApiError as error:
                errors.append(error)
        return errors
