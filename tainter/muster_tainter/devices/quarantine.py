"""Keeps single devices out of use while the policy says so: watches ResourceSlices and DeviceTaintRules, tells
decisions what is known of a node's devices, and writes the rules that the nodes' records require.

Every replica watches, so that a new leader knows the devices; only the leader writes. While ``devices.quarantine`` is
off, and no rule of Muster is left, nothing is watched.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import suppress

from muster_kube.api.client import KubeClient, Params
from muster_kube.api.errors import ApiError, ConfigError, Forbidden, NotFound
from muster_kube.api.objects import Node
from muster_kube.controller.reflector import Reflector
from muster_kube.controller.workqueue import WorkQueue, run_workers
from muster_kube.nodehealth import NodeHealth
from muster_tainter.devices.api_versions import DeviceApi, NotServed, find_api
from muster_tainter.devices.board_history import BoardHistory
from muster_tainter.devices.budget import DeviceBudget
from muster_tainter.devices.device_account import DeviceAccount
from muster_tainter.devices.device_view import DeviceView
from muster_tainter.devices.holders.drains import DeviceDrains
from muster_tainter.devices.holders.notifier import HolderNotifier
from muster_tainter.devices.holders.reader import HolderReader
from muster_tainter.devices.losses import devices_lost
from muster_tainter.devices.metrics import DeviceMetrics
from muster_tainter.devices.rules.plan import staged_faults
from muster_tainter.devices.rules.store import RuleStore
from muster_tainter.devices.rules.taint_rule import SELECTOR, DeviceTaintRule, slim_rule
from muster_tainter.devices.rules.writer import RuleWriter
from muster_tainter.devices.slices.device_map import NodeDevices
from muster_tainter.devices.slices.index import SLICES_LIMIT, SliceIndex, SliceStore
from muster_tainter.devices.slices.nic_names import nic_names
from muster_tainter.devices.slices.resource_slice import ResourceSlice, slim_slice
from muster_tainter.faults.decision_context import DeviceContext
from muster_tainter.faults.desired_state import Decision
from muster_tainter.faults.device_isolation import device_key
from muster_tainter.faults.record.node_record import ANNOTATION, NodeRecord, read_record
from muster_tainter.fleet.interface import Fleet
from muster_tainter.fleet.replica import Replica
from muster_tainter.metrics import TainterMetrics

log = logging.getLogger(__name__)

WORKERS = 8
AHEAD_S = 1.0  # after a PATCH that failed, so long the rules created before its answer wait for the next decision
KNOWN_S = 3.0  # a new leader waits so long for its first lists
ASK_AGAIN_S = 60.0  # for an API that is not served
_LOOK_S = 1.0
_NEVER = float("inf")


class DeviceQuarantine:
    """look_again: called with nodes to decide about again."""

    def __init__(
        self,
        client: KubeClient,
        fleet: Fleet,
        replica: Replica,
        metrics: TainterMetrics,
        look_again: Callable[[str], None],
    ) -> None:
        self._client = client
        self._fleet = fleet
        self._replica = replica
        self._look_again = look_again
        self.on_devices: Callable[[str], None] = lambda _: None  # called when ResourceSlices of a node change
        self._index = SliceIndex(lambda name: name in fleet.nodes)
        self._store = RuleStore(replica.clock)
        self._boards = BoardHistory(lambda name, board: board in self._index.devices(name).cards)
        self._view = DeviceView(fleet, self._index, self._store, self._boards)
        self._metrics = DeviceMetrics(metrics.registry, self.staged, self._devices_lost, self._tainted_by_drivers)
        self._account = DeviceAccount(replica.clock, self._metrics.add_seconds)
        self._reader = HolderReader(client)
        self._holders = HolderNotifier(client, fleet, replica, self._store, self._reader)
        self.drains = DeviceDrains(self._reader, fleet, self._store, replica.now)
        self.on_rules: Callable[[str], None] = lambda _: None  # called with a node whose rules have changed
        self._writer = RuleWriter(
            client,
            fleet,
            replica,
            self._store,
            self._index,
            self._observe,
            self._metrics.count,
            self._holders.note,
        )
        self.budget = DeviceBudget(
            fleet.policy, fleet.node, self._index.nodes, self._count_devices, look_again, replica.clock
        )
        self._api: DeviceApi | None = None
        self._missing_api = ""
        self._slices: Reflector[ResourceSlice] | None = None
        self._rules: Reflector[DeviceTaintRule] | None = None
        self._wanted = asyncio.Event()
        self._synced = asyncio.Event()
        self._queue: WorkQueue[str] | None = None  # set while leading
        self._excess_logged: set[str] = set()  # nodes
        self._staged: set[str] = set()  # nodes whose record keeps a device out
        self._ahead: dict[str, Node] = {}  # as they will be after their PATCH, which has not been answered
        self._ahead_until: dict[str, float] = {}  # of those whose PATCH has failed, monotonic
        self.policy_changed()

    # what decisions need

    def context(self, node: Node, withhold: str) -> DeviceContext:
        """What is known of the node's devices. withhold: why nothing new may begin on any node."""
        return self._view.context(node, self._unavailable if self._on else "devices.quarantine is off", withhold)

    def reserve(self, node: Node, decision: Decision) -> str | None:
        """Reserve places in the budgets of devices for a decision. Returns why there are none, or None."""
        if not self._on:
            return None
        return self.budget.reserve(node.metadata.name, node, decision.isolates, decision.device_waits)

    def patch_begins(self, node: Node, decision: Decision) -> None:
        """Queue the rules that the Node will require; call it before the PATCH. If the caller then yields once to the
        event loop and a worker is idle, their requests are sent before the PATCH, else after it. node: as it will be.
        """
        name = node.metadata.name
        if decision.isolates and self._queue is not None:
            self._ahead[name] = node
            self._ahead_until.pop(name, None)
            self._queue.add(name)

    def patch_ended(self, name: str, *, done: bool) -> None:
        """The record is on the Node (``done``), or it is not, and the next decision may need the rules all the same."""
        if name not in self._ahead or self._queue is None:
            return
        if done:
            del self._ahead[name]
            self._queue.add(name)
        else:
            self._ahead_until[name] = self._replica.clock() + AHEAD_S
            self._queue.add_after(name, AHEAD_S + 0.01)

    @property
    def _on(self) -> bool:
        return self._fleet.policy().devices.quarantine != "off"

    @property
    def _unavailable(self) -> str | None:
        """Why no device can be quarantined; empty if they can, None if that is not known yet."""
        if self._missing_api:
            return self._missing_api
        for what, reflector in (("ResourceSlices", self._slices), ("DeviceTaintRules", self._rules)):
            if reflector is None:
                return None
            if not reflector.synced:
                return f"cannot read {what}: {reflector.error}" if reflector.error else None
        if self._index.left_out:
            return f"there are more than {SLICES_LIMIT} ResourceSlices"
        return ""

    # changes

    def node_changed(self, name: str, old: Node | None, new: Node | None) -> None:
        if (old is None) != (new is None):
            self._index.nodes_changed()
        self.health_changed(name)
        staged = staged_faults(new) if new is not None and ANNOTATION in new.metadata.annotations else {}
        if staged:
            self._staged.add(name)
            self._wanted.set()
        else:
            self._staged.discard(name)
        if any(each is not None and ANNOTATION in each.metadata.annotations for each in (old, new)):
            self._boards.note(name, new)
        if self._wanted.is_set():
            self.budget.note(name, new)
            self._store.settle(name, staged)
            if staged or self._store.of(name):
                self._add(name)

    def health_changed(self, name: str) -> None:
        """Its NodeHealth, or its record, may name NICs."""
        node, health = self._fleet.nodes.get(name), self._fleet.health_of(name)
        memory = read_record(node) if node is not None and ANNOTATION in node.metadata.annotations else NodeRecord()
        self._index.name_nics(name, nic_names(memory, health if isinstance(health, NodeHealth) else None))

    def policy_changed(self) -> None:
        if self._on:
            self._wanted.set()
        self.budget.look_again()
        for name in {*self._staged, *self._store.nodes()}:
            self._add(name)

    def _slice_changed(self, key: str, old: ResourceSlice | None, new: ResourceSlice | None) -> None:
        for name in self._index.note(key, old, new):
            self._log_excess(name)
            self.on_devices(name)
            node = self._fleet.nodes.get(name)
            if node is not None and ANNOTATION in node.metadata.annotations:
                self._look_again(name)
                self._add(name)

    def _log_excess(self, name: str) -> None:
        """Once for each node."""
        why = self._index.excess(name)
        if why and name not in self._excess_logged:
            self._excess_logged.add(name)
            log.warning("no device of node %s is shown or can be quarantined alone: %s", name, why)

    def _slice_undecodable(self, key: str | None, _raw: bytes, error: str) -> None:
        log.warning("ResourceSlice %s cannot be read, its devices are not quarantined: %s", key or "(no name)", error)

    def _rule_changed(self, _key: str, old: DeviceTaintRule | None, new: DeviceTaintRule | None) -> None:
        nodes = self._store.note(old, new)
        if self._queue is None:
            self._store.forget_people()
        for name in nodes:
            # only a rule that is required now can have been taken away by a person
            self._store.settle(name, staged_faults(self._fleet.nodes.get(name)))
            self._look_again(name)
            self._add(name)
            self.on_rules(name)

    def _add(self, name: str) -> None:
        if self._queue is not None:
            self._queue.add(name)

    def _observe(self, rule: DeviceTaintRule) -> None:
        if self._rules is not None:
            self._rules.observe(slim_rule(rule))

    # tasks

    async def watch(self) -> None:
        """Runs forever, leading or not."""
        await self._wanted.wait()
        self._api = await self._discover()
        self._reader.use(self._api)
        slices = self._slices = Reflector(
            self._client,
            self._api.slices,
            ResourceSlice,
            on_change=self._slice_changed,
            on_undecodable=self._slice_undecodable,
            transform=slim_slice,
            objects=SliceStore(self._index),
        )
        rules = self._rules = Reflector(
            self._client,
            self._api.rules,
            DeviceTaintRule,
            on_change=self._rule_changed,
            params={"labelSelector": SELECTOR},
            transform=slim_rule,
        )
        async with asyncio.TaskGroup() as group:
            group.create_task(slices.run())
            group.create_task(rules.run())
            group.create_task(self._follow_state())

    async def wait_known(self) -> None:
        """Wait for what a leader must know before it decides, once the Nodes are known for a limited time: taints must
        not wait for it."""
        await self._fleet.wait_synced()
        if self._on:
            with suppress(TimeoutError):
                async with asyncio.timeout(KNOWN_S):
                    await self._synced.wait()

    async def _discover(self) -> DeviceApi:
        while True:
            try:
                found = await find_api(self._client)
            except NotServed as error:
                self._tell_missing(str(error))
            except (ApiError, ConfigError) as error:
                self._tell_missing(f"cannot find out what the API server serves of resource.k8s.io: {error}")
            else:
                self._missing_api = ""
                log.info("devices are quarantined by %s", found.rules)
                return found
            await asyncio.sleep(ASK_AGAIN_S)

    def _tell_missing(self, why: str) -> None:
        if why != self._missing_api:
            log.warning("no device can be quarantined, nodes are tainted instead: %s", why)
            self._missing_api = why
            self._synced.set()
            self._decide_faulty()

    async def _follow_state(self) -> None:
        """Decide again when it becomes known whether devices can be quarantined."""
        known: str | None = None
        while True:
            state = self._unavailable
            if state is not None:
                self._synced.set()
            if state != known:
                if state:
                    log.warning("no device can be quarantined, nodes are tainted instead: %s", state)
                self._decide_faulty()
                known = state
            await asyncio.sleep(_LOOK_S)

    def _decide_faulty(self) -> None:
        for name, node in list(self._fleet.nodes.items()):
            if ANNOTATION in node.metadata.annotations:
                self._look_again(name)
                self._add(name)

    async def lead(self) -> None:
        """Writes rules until cancelled."""
        if self._replica.dry_run:
            return
        self._store.forget_people()
        queue = self._queue = WorkQueue[str]()
        for name in {*self._staged, *self._store.nodes()}:
            queue.add(name)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(run_workers(queue, self._write, workers=WORKERS))
                group.create_task(self._find_left_over())
                group.create_task(self._holders.run())
                group.create_task(self._account.run(self._fleet, self.of))
        finally:
            self._queue = None
            self._ahead.clear()
            self._ahead_until.clear()

    async def _write(self, name: str) -> None:
        api = self._api
        if api is None or self._rules is None or not self._rules.synced:
            if self._queue is not None and (name in self._staged or self._store.of(name)):
                self._queue.add_after(name, _LOOK_S)
            return
        if self._ahead_until.get(name, _NEVER) <= self._replica.clock():
            del self._ahead_until[name]
            self._ahead.pop(name, None)
        ahead = self._ahead.get(name)
        if ahead is not None:
            again = await self._writer.write_ahead(ahead, api)
        else:
            again = await self._writer.write(name, api)
        if again:
            self._look_again(name)
        for each in self._store.drop_expired():
            self._look_again(each)
        self._look_later(name)

    def _look_later(self, name: str) -> None:
        """When time alone changes what is to be done: a device that no slice names, a rule that is gone for an unknown
        reason, a write to be tried again."""
        if self._queue is None:
            return
        cards = self._index.devices(name).cards
        grace = self._fleet.policy().devices.grace
        for component in staged_faults(self._fleet.node(name)):
            waits_s = self._store.vanished_s(name, component)
            if waits_s is not None:
                self._queue.add_after(name, max(0.0, grace - waits_s) + 0.1)
            if device_key(component) in cards or not self._store.for_component(name, component):
                continue
            left_s = grace - self._store.missing_s(name, component)
            if left_s > 0:
                self._queue.add_after(name, left_s + 0.1)
            else:
                self._look_again(name)
        retry_s = self._store.retry_in_s(name)
        if retry_s is not None:
            self._queue.add_after(name, retry_s + 0.1)

    async def _find_left_over(self) -> None:
        """Once for each leader, if nothing is watched: a former policy, or a crash, may have left rules behind."""
        if self._wanted.is_set():
            return
        try:
            api = await find_api(self._client)
            one: Params = {"labelSelector": SELECTOR, "limit": 1}
            page = await self._client.list_page(api.rules, DeviceTaintRule, params=one)
        except (NotServed, Forbidden, NotFound):
            return
        except (ApiError, ConfigError) as error:
            log.warning("cannot look for DeviceTaintRules that are left over: %s", error)
            return
        if any(rule.node for rule in page.items):
            self._wanted.set()

    # figures

    def of(self, name: str) -> NodeDevices:
        """The devices of a node; none while nothing is watched."""
        return self._index.devices(name)

    def staged(self) -> Iterator[tuple[str, str]]:
        """(stage, component) of each device that is kept out or waits."""
        for name in self._staged:
            for component, faults in staged_faults(self._fleet.nodes.get(name)).items():
                yield faults[0].device, component
        for components in self.budget.waiting.values():
            for component in components:
                yield "withheld", component

    def _count_devices(self, name: str) -> int:
        return sum(self._index.devices(name).counts.values())

    def _devices_lost(self) -> int:
        """Healthy devices on nodes that are tainted for faults of single devices only."""
        policy = self._fleet.policy()
        recorded = (node for node in self._fleet.nodes.values() if ANNOTATION in node.metadata.annotations)
        return sum(devices_lost(node, self._index.devices(node.metadata.name), policy) for node in recorded)

    def _tainted_by_drivers(self) -> Iterator[tuple[str, str]]:
        """(driver, effect) of each device."""
        return self._account.tainted(map(self._index.devices, self._index.nodes()))
