"""Maintains the ConfigMap ``muster-ipu-quarantine`` while this process leads. Writes only changes.

Changes by others are reverted. The ConfigMap is created when the first IPU is quarantined, so a cluster without IPUs
has none.
"""

import asyncio
import logging
from contextlib import suppress
from functools import partial

import msgspec
from prometheus_client import CollectorRegistry, Gauge

from muster_kube.api.client import KubeClient
from muster_kube.api.errors import AlreadyExists, ApiError, ConfigError, Conflict, NotFound
from muster_kube.api.objects import Api, Metadata, Node
from muster_kube.controller.backoff import Backoff
from muster_kube.controller.reflector import Reflector
from muster_tainter.faults.messages import Notice
from muster_tainter.faults.record.node_record import ANNOTATION
from muster_tainter.fleet.interface import FIELD_MANAGER, NODES_PATH, Fleet
from muster_tainter.fleet.replica import Replica
from muster_tainter.pause import config_maps
from muster_tainter.repair.ipu_quarantine_plan import (
    NAME,
    NodeQuarantine,
    QuarantinePlan,
    data_patch,
    entry_nodes,
    plan_quarantine,
    read_quarantine,
)
from muster_tainter.task_rounds import Rounds

log = logging.getLogger(__name__)

LEAST_S = 0.2  # changes within this time are written together
READ_AGAIN_S = 10.0


class QuarantineConfigMap(Api, frozen=True):
    """The ConfigMap; somebody else may have created it."""

    metadata: Metadata
    data: dict[str, str] = msgspec.field(default_factory=dict)


class IpuQuarantineWriter:
    """The ConfigMap is in the replica's namespace."""

    def __init__(self, client: KubeClient, fleet: Fleet, replica: Replica, registry: CollectorRegistry) -> None:
        self._client = client
        self._fleet = fleet
        self._replica = replica
        self._path = config_maps(replica.namespace)
        self.rounds = Rounds("quarantine of IPUs", fleet.taints_idle, least_s=0.0, backoff=Backoff(1.0, 60.0))
        self._nodes: dict[str, NodeQuarantine] = {}
        self._verified: set[str] = set()  # Nodes that were read from etcd in this term
        self._reported: dict[str, str] = {}  # by node: the last Event about IPUs that are not quarantined
        self._result = QuarantinePlan({})
        help_text = "IPUs with open faults that require quarantine, by state"
        gauge = Gauge("muster_tainter_ipus_quarantined", help_text, ["state"], registry=registry)
        gauge.labels("held").set_function(lambda: len(self._result.data))
        gauge.labels("withheld").set_function(lambda: len(self._result.withheld))

    def note(self, name: str) -> None:
        """This node has changed."""
        self.rounds.note(name)

    def look_at_all(self) -> None:
        """The policy or the pause may have changed."""
        self.rounds.changed.update(self._fleet.nodes)
        self.rounds.changed.update(self._nodes)
        self.rounds.wake()

    async def run(self) -> None:
        """Runs until cancelled."""
        if self._replica.dry_run:
            return
        there: Reflector[QuarantineConfigMap] = Reflector(
            self._client,
            self._path,
            QuarantineConfigMap,
            on_change=lambda *_: self.rounds.wake(),
            on_undecodable=lambda *_: self.rounds.wake(),
            params={"fieldSelector": f"metadata.name={NAME}"},
        )
        self.look_at_all()
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(there.run())
                group.create_task(self._follow(there))
        finally:
            self._nodes.clear()
            self._verified.clear()
            self._reported.clear()
            self._result = QuarantinePlan({})

    async def _follow(self, there: "Reflector[QuarantineConfigMap]") -> None:
        await there.wait_synced()
        await self.rounds.run(partial(self._once, there))

    async def _once(self, there: "Reflector[QuarantineConfigMap]") -> float:
        await asyncio.sleep(LEAST_S)
        look_at = self._look()
        await self._write(there)
        return look_at - self._replica.now()

    def _look(self) -> float:
        """Process changed and due nodes. Returns when time alone changes something."""
        policy, now = self._fleet.policy(), self._replica.now()
        changed = set(self.rounds.changed)
        self.rounds.changed.clear()
        changed.update(name for name, each in self._nodes.items() if each.look_at <= now)
        for name in changed:
            node = self._fleet.node(name)
            # cheap enough for every change of every node: few nodes have a failed IPU
            about = node is not None and '"ipu/' in node.metadata.annotations.get(ANNOTATION, "")
            found = read_quarantine(node, policy, now) if node is not None and about else NodeQuarantine()
            if found == NodeQuarantine():
                self._nodes.pop(name, None)
                self._reported.pop(name, None)
            else:
                self._nodes[name] = found
        return min((each.look_at for each in self._nodes.values()), default=float("inf"))

    async def _write(self, there: "Reflector[QuarantineConfigMap]") -> None:
        known = there.store.get(f"{self._replica.namespace}/{NAME}")
        kept = (known.data if known is not None else {}) if self._fleet.withheld() else None
        reasons = [reason for each in self._nodes.values() for reason in each.reasons]
        result = self._result = plan_quarantine(reasons, self._fleet.policy(), kept=kept)
        self._report_withheld(result)
        if known is None:
            if result.data:
                await self._create(there, result)
            return
        patch = data_patch(known.data, result.data)
        if not patch or not self._replica.may_write():
            return
        unread = self._unread_nodes(known, [key for key, value in patch.items() if value is None])
        if unread:  # the next round removes; a failed IPU does not wait for it
            patch = {key: value for key, value in patch.items() if value is not None}
        if patch:
            await self._patch(there, known, patch)
        await self._read_nodes(unread)

    async def _patch(
        self, there: "Reflector[QuarantineConfigMap]", known: QuarantineConfigMap, patch: dict[str, str | None]
    ) -> None:
        body = {"metadata": {"resourceVersion": known.metadata.resource_version}, "data": patch}
        try:
            path = f"{self._path}/{NAME}"
            answer = await self._client.patch(
                path, body, type=QuarantineConfigMap, params={"fieldManager": FIELD_MANAGER}
            )
        except (Conflict, NotFound):
            return  # the watch delivers the current state
        there.observe(answer)
        self._log(patch)

    def _unread_nodes(self, known: QuarantineConfigMap, removed: list[str]) -> set[str]:
        """The Nodes on which the removed entries are based, without those that were read in this term: our watch may
        not have delivered the fault for which the leader before us added the entry."""
        return {name for key in removed for name in entry_nodes(known.data[key])} - self._verified

    async def _read_nodes(self, names: set[str]) -> None:
        for name in sorted(names):
            try:
                with suppress(NotFound):
                    self._fleet.observe_node(await self._client.get(f"{NODES_PATH}/{name}", type=Node))
            except (ApiError, ConfigError) as error:
                log.warning("cannot read node %s, so its IPUs stay quarantined: %s; will retry", name, error)
                asyncio.get_running_loop().call_later(READ_AGAIN_S, self.rounds.wake)
            else:
                self._verified.add(name)
                self.rounds.note(name)

    async def _create(self, there: "Reflector[QuarantineConfigMap]", result: QuarantinePlan) -> None:
        if not self._replica.may_write():
            return
        body = {"metadata": {"name": NAME}, "data": dict(result.data)}
        with suppress(AlreadyExists):  # the watch delivers it
            there.observe(await self._client.create(self._path, body, type=QuarantineConfigMap))
            self._log({**result.data})

    def _log(self, patch: dict[str, str | None]) -> None:
        for key, value in sorted(patch.items()):
            if value is None:
                log.info("IPU %s is no longer quarantined", key)
            else:
                log.warning("IPU %s is quarantined: %s", key, value)

    def _report_withheld(self, result: QuarantinePlan) -> None:
        for name, each in self._nodes.items():
            texts = []
            without_room = sorted({reason.component for reason in each.reasons} & set(result.withheld))
            if without_room:
                why = self._fleet.withheld() or f"budget: {self._fleet.policy().quarantine.limit} IPUs are quarantined"
                texts.append(f"{', '.join(without_room[:8])}: {why}")
            if each.unaddressed:
                texts.append(f"{', '.join(each.unaddressed[:8])}: not an IPU of an IPU-Machine")
            text = "; ".join(texts)
            if text and self._reported.get(name) != text:
                node = self._fleet.node(name)
                if node is not None:
                    self._fleet.notify(node, Notice("QuarantineWithheld", f"not quarantined: {text}", "quarantine"))
            self._reported[name] = text
