"""Two simulated nodes of eight devices each, under the real scheduler."""

import asyncio
import itertools
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from tests.cluster.devices.device_objects import (
    CLASSES,
    SLICES,
    claiming_pod,
    device_claim,
    device_class,
    device_slice,
    device_taint_rule,
    rules_path,
)
from tests.polling import pause_s

from muster_kube.api.client import KubeClient
from muster_kube.api.errors import NotFound

GUARD_S = 120.0  # the scheduler itself looks again every 60 s at what it could not place
HOST = "kubernetes.io/hostname"


@dataclass
class DeviceBed:
    """namespace: for the pods; also the label of the nodes and the name of the class, so that tests do not meet."""

    api: KubeClient
    namespace: str
    nodes: list[str]
    rules: str = ""
    _rules_made: list[str] = field(default_factory=list)

    async def start(self) -> None:
        self.rules = await rules_path(self.api)
        await self.api.create(CLASSES, device_class(self.namespace))
        for node in self.nodes:
            await self.api.create(SLICES, device_slice(node))

    async def stop(self) -> None:
        await self._delete(*(f"{self.rules}/{name}" for name in self._rules_made))
        for name in [each["metadata"]["name"] for each in (await self.api.get(self.pods))["items"]]:
            await self.delete_pod(name)
        await self._delete(f"{CLASSES}/{self.namespace}")
        for node in self.nodes:
            await self._delete(f"{SLICES}/{device_slice(node)['metadata']['name']}")

    @property
    def pods(self) -> str:
        return f"/api/v1/namespaces/{self.namespace}/pods"

    @property
    def claims(self) -> str:
        return f"/apis/resource.k8s.io/v1/namespaces/{self.namespace}/resourceclaims"

    async def ask_for(self, count: int, *, on: str = "", name: str = "") -> str:
        """A pod for ``count`` devices, of the node ``on`` or of any node of the bed. Returns its name."""
        name = name or f"asks-{count}-{on or 'any'}"
        selector = {"bed": self.namespace} | ({HOST: on} if on else {})
        await self.api.create(self.claims, device_claim(name, self.namespace, count))
        await self.api.create(self.pods, claiming_pod(name, selector=selector))
        return name

    async def node_of(self, pod: str) -> str:
        """Once it is bound."""
        return str(await self._until(lambda found: found["spec"].get("nodeName"), pod))

    async def ask_in_vain(self, count: int, *, on: str) -> str:
        """A pod that the scheduler has found no place for. It may not have heard of a new rule yet: then asks again."""

        def decided(found: dict[str, Any]) -> str:
            conditions = found["status"].get("conditions", [])
            refused = any(each.get("reason") == "Unschedulable" for each in conditions)
            return "bound" if found["spec"].get("nodeName") else "refused" if refused else ""

        for attempt in itertools.count():
            pod = await self.ask_for(count, on=on, name=f"in-vain-{count}-{on}-{attempt}")
            if await self._until(decided, pod) == "refused":
                return pod
            await self.delete_pod(pod)
        raise AssertionError("unreachable")

    async def is_bound(self, pod: str) -> bool:
        return bool((await self.api.get(f"{self.pods}/{pod}"))["spec"].get("nodeName"))

    async def devices_of(self, pod: str) -> set[str]:
        """What the claim of the pod was given, by the names of the devices."""
        found = await self.api.get(f"{self.claims}/{pod}")
        return {each["device"] for each in found["status"]["allocation"]["devices"]["results"]}

    async def delete_pod(self, name: str) -> None:
        """With its claim; other pods may have the devices once it is gone, which the controller-manager sees to."""
        await self._delete(f"{self.pods}/{name}", f"{self.claims}/{name}")

    async def taint(self, name: str, node: str, index: int, effect: str = "NoSchedule") -> None:
        await self.api.create(self.rules, device_taint_rule(name, node, index, effect))
        self._rules_made.append(name)

    async def untaint(self, name: str) -> None:
        await self.api.delete(f"{self.rules}/{name}")
        self._rules_made.remove(name)

    async def all_rules(self) -> list[dict[str, Any]]:
        """For devices of the bed's nodes."""
        items: list[dict[str, Any]] = (await self.api.get(self.rules))["items"]
        return [each for each in items if each["spec"].get("deviceSelector", {}).get("pool") in self.nodes]

    async def report_on(self, rule: str) -> dict[str, Any]:
        """What the controller-manager says of the rule in its status."""

        def reported(found: dict[str, Any]) -> dict[str, Any] | None:
            conditions: list[dict[str, Any]] = found.get("status", {}).get("conditions", [])
            return next((each for each in conditions if each["type"] == "EvictionInProgress"), None)

        answer: dict[str, Any] = await self._until(reported, rule, self.rules)
        return answer

    async def _until(self, look: Any, name: str, path: str = "") -> Any:
        begun = time.monotonic()
        while not (answer := look(found := await self.api.get(f"{path or self.pods}/{name}"))):
            assert time.monotonic() < begun + GUARD_S, f"{name}: {found}"
            await asyncio.sleep(pause_s(begun))
        return answer

    async def _delete(self, *paths: str) -> None:
        for path in paths:
            with suppress(NotFound):
                await self.api.delete(path, params={"gracePeriodSeconds": 0})
