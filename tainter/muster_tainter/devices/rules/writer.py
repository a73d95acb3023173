"""Creates, changes and deletes the DeviceTaintRules of one node, as its record requires. Repeating it changes nothing.

The rules that a new record requires are created without waiting for the answer to the PATCH of the Node: their requests
go first if the decision changes no taint of the Node, else after the PATCH. Before the answer, no rule is changed or
removed: if the PATCH fails, the new ones are removed later, and a leader that is killed in between leaves a rule that
the next one removes. Otherwise creations come before removals, and before a removal the Node is read again, because
this replica's copy may be older than the record that a former leader wrote the rule for. Errors that another attempt
may overcome are raised; others are recorded as a failure of the component, so that the node is tainted instead.
"""

import logging
from collections.abc import Callable, Collection, Mapping

from muster_checks.base.vocabulary import shorten
from muster_kube.api.client import KubeClient
from muster_kube.api.errors import AlreadyExists, ApiError, Conflict, NotFound, TooManyRequests, Unreachable
from muster_kube.api.objects import Node
from muster_kube.controller.leader_client import NotLeading
from muster_tainter.devices.api_versions import DeviceApi
from muster_tainter.devices.rules.plan import is_obsolete, is_unclear, plan_rules, staged_faults
from muster_tainter.devices.rules.store import RuleStore
from muster_tainter.devices.rules.taint_rule import DeviceTaintRule, ManagedRule, WantedRule, spec_managers
from muster_tainter.devices.slices.device_map import NodeDevice
from muster_tainter.devices.slices.index import SliceIndex
from muster_tainter.faults.messages import MESSAGE_LIMIT, Notice, format_taint
from muster_tainter.fleet.interface import FIELD_MANAGER, NODES_PATH, Fleet
from muster_tainter.fleet.replica import Replica

log = logging.getLogger(__name__)

_AGAIN = (Unreachable, TooManyRequests, NotLeading, Conflict)
_TRIES = 3  # of a write that the server answers with an internal error


class RuleWriter:
    """observe: called with the result of a write; count: called with the result (``created``, ``changed``, ``deleted``
    or an error's reason) of each; on_created: with the node and component of a rule."""

    def __init__(
        self,
        client: KubeClient,
        fleet: Fleet,
        replica: Replica,
        store: RuleStore,
        index: SliceIndex,
        observe: Callable[[DeviceTaintRule], None],
        count: Callable[[str], None],
        on_created: Callable[[str, str], None] = lambda _node, _component: None,
    ) -> None:
        self._client = client
        self._fleet = fleet
        self._replica = replica
        self._store = store
        self._index = index
        self._observe = observe
        self._count = count
        self._on_created = on_created
        self._errors: dict[tuple[str, str], int] = {}
        self._created_ahead: set[tuple[str, str]] = set()

    async def write_ahead(self, ahead: Node, api: DeviceApi) -> bool:
        """Create the rules that the Node will require after its PATCH, which has not been answered. Returns and
        raises as :meth:`write` does."""
        name, again = ahead.metadata.name, False
        plan = plan_rules(name, ahead, self._cards(name), self._store.of(name).values(), self._fleet.policy())
        for wanted in plan.create:
            if wanted.taint.effect == "NoExecute":
                continue  # evicts at once, which cannot be taken back if the PATCH fails
            key = name, wanted.component
            if key not in self._store.vanished and key not in self._store.released:
                self._created_ahead.add((name, wanted.component))
                again |= await self._create(ahead, wanted, api)
        return again

    async def write(self, name: str, api: DeviceApi) -> bool:
        """Returns whether the node has to be decided again. Raises ApiError if another attempt may succeed."""
        node = self._fleet.node(name)
        self._report_holders(name, staged_faults(node))
        again = await self._verify_vanished(name, api)
        plan = plan_rules(name, node, self._cards(name), self._store.of(name).values(), self._fleet.policy())
        for wanted in plan.create:
            if not {(name, wanted.component)} & {*self._store.vanished, *self._store.released}:
                again |= await self._create(node, wanted, api)
        for rule, wanted in plan.change:
            if (name, wanted.component) not in self._store.released:
                again |= await self._change(rule, wanted, api)
        if plan.remove:
            await self._remove(name, api)
        return again

    async def _verify_vanished(self, name: str, api: DeviceApi) -> bool:
        """A rule that the record requires and that somebody has deleted, or taken the label from, counts as cleared.
        While the slices do not say whether it was a person, the rules of its device stay as they are."""
        staged = staged_faults(self._fleet.node(name))
        found = False
        for (node, component), gone in list(self._store.vanished.items()):
            if node != name or component not in staged:
                continue
            of_device = component, staged[component], self._cards(name), name, self._fleet.policy()
            if is_obsolete(gone.name, *of_device):
                del self._store.vanished[node, component]  # the leader before this one has deleted it
                continue
            if is_unclear(self._store.for_component(name, component), *of_device):
                self._stop_waiting(name, component)
                continue
            try:
                there = await self._client.get(f"{api.rules}/{gone.name}", type=DeviceTaintRule)
            except NotFound:
                there = None
            if self._store.vanished.get((node, component)) is not gone:
                continue  # the fault has closed meanwhile, or another rule has gone
            del self._store.vanished[node, component]
            if there is None or there.node != name:
                self._store.released[node, component] = f"unknown (DeviceTaintRule {gone.name} was deleted)"
                found = True
        return found

    def _stop_waiting(self, name: str, component: str) -> None:
        """Slices that stay as they are for long are not old: then the rules follow them, and nothing is cleared."""
        if (self._store.vanished_s(name, component) or 0.0) >= self._fleet.policy().devices.grace:
            del self._store.vanished[name, component]

    async def _create(self, node: Node | None, wanted: WantedRule, api: DeviceApi) -> bool:
        self._may_write(api.rules)
        try:
            made = await self._client.create(
                api.rules, wanted.body(api.rule_version), type=DeviceTaintRule, params={"fieldManager": FIELD_MANAGER}
            )
        except AlreadyExists:
            there = await self._client.get(f"{api.rules}/{wanted.name}", type=DeviceTaintRule)
            if there.node == wanted.node and (there.component == wanted.component or wanted.is_met_by(there)):
                self._observe(there)  # the watch has not delivered it yet, or it is for another name of the device
                return True
            return self._failed(wanted, f"DeviceTaintRule {wanted.name} exists and is not Muster's")
        except (ApiError, ValueError) as error:
            return self._failed(wanted, f"cannot create a DeviceTaintRule: {error}", error)
        self._count("created")
        self._errors.pop((wanted.node, wanted.component), None)
        self._observe(made)
        self._report(node, wanted)
        if (wanted.node, wanted.component) not in self._created_ahead:
            self._on_created(wanted.node, wanted.component)
        return True

    def _report_holders(self, name: str, staged: Collection[str]) -> None:
        """For rules that were created before the record said so."""
        for key in [key for key in self._created_ahead if key[0] == name]:
            self._created_ahead.discard(key)
            if key[1] in staged:
                self._on_created(*key)

    async def _change(self, rule: DeviceTaintRule, wanted: WantedRule, api: DeviceApi) -> bool:
        """Put the rule right, unless a person has edited it: then its faults count as cleared."""
        path = f"{api.rules}/{rule.metadata.name}"
        try:
            live = await self._client.get(path, type=ManagedRule)
        except NotFound:
            return False  # the watch delivers it
        if live.spec == wanted.spec:
            return False
        policy = self._fleet.policy()
        people = [m for m in spec_managers(live) if m != FIELD_MANAGER and not policy.is_controller(m)]
        if people:
            by = f"{people[-1]} (edited DeviceTaintRule {rule.metadata.name})"
            self._store.released[wanted.node, wanted.component] = by
            return True
        self._may_write(path)
        body = {"metadata": {"resourceVersion": live.metadata.resource_version}, "spec": wanted.spec}
        try:
            made = await self._client.patch(path, body, type=DeviceTaintRule, params={"fieldManager": FIELD_MANAGER})
        except ApiError as error:
            return self._failed(wanted, f"cannot change DeviceTaintRule {rule.metadata.name}: {error}", error)
        self._count("changed")
        self._observe(made)
        return True

    async def _remove(self, name: str, api: DeviceApi) -> None:
        try:
            node = await self._client.get(f"{NODES_PATH}/{name}", type=Node)
        except NotFound:
            node = None
        cards, policy = self._cards(name), self._fleet.policy()
        plan = plan_rules(name, node, cards, self._store.of(name).values(), policy)
        unwritten = {wanted.component for wanted in plan.create}
        for rule in plan.remove:
            if rule.component in unwritten:
                continue
            path = f"{api.rules}/{rule.metadata.name}"
            self._may_write(path)
            self._store.will_delete(rule)
            try:
                await self._client.delete(path, {"preconditions": {"uid": rule.metadata.uid}})
            except (NotFound, Conflict):
                continue  # somebody was faster
            except ApiError as error:
                self._count(error.reason)
                raise
            self._count("deleted")
            log.warning("node %s: %s: DeviceTaintRule %s deleted", name, rule.component, rule.metadata.name)
            if node is not None:
                text = f"{rule.component}: DeviceTaintRule {rule.metadata.name} deleted"
                self._fleet.notify(node, Notice("DeviceReleased", text, rule.component, warning=False))

    def _failed(self, wanted: WantedRule, why: str, error: Exception | None = None) -> bool:
        """Raises ``error`` if another attempt may succeed; else records the failure."""
        key = wanted.node, wanted.component
        if isinstance(error, ApiError):
            self._count(error.reason)
            if isinstance(error, _AGAIN):
                raise error
            self._errors[key] = self._errors.get(key, 0) + 1
            if error.status >= 500 and self._errors[key] < _TRIES:
                raise error
        self._errors.pop(key, None)
        log.error("node %s: %s is not quarantined alone, the node is tainted: %s", wanted.node, wanted.component, why)
        self._store.fail(wanted.node, wanted.component, why)
        return True

    def _may_write(self, path: str) -> None:
        if not self._replica.may_write():
            raise NotLeading(path)

    def _cards(self, name: str) -> Mapping[str, NodeDevice]:
        return self._index.devices(name).cards

    def _report(self, node: Node | None, wanted: WantedRule) -> None:
        where = f"{wanted.driver}/{wanted.pool}/{wanted.device}"
        taint = format_taint(wanted.taint)
        text = f"{wanted.component}: DeviceTaintRule {wanted.name} ({taint}) for {where}: {wanted.why}"
        log.warning("node %s: %s", wanted.node, text)
        if node is not None:
            self._fleet.notify(node, Notice("DeviceQuarantined", shorten(text, MESSAGE_LIMIT), wanted.component))
