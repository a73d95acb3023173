"""`muster release NODE…` and spares: a leading tainter keeps them; without one, the command frees them too."""

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import msgspec

from muster_cli.commands.release_nodes import NodeRelease, decide_hands_off, find_targets, make_target
from muster_kube.api.errors import NotFound
from muster_kube.api.objects import Node
from muster_tainter.policy.file import load_policy

POLICY = load_policy(None)
SPARE = {"key": "muster.dev/spare", "value": "true", "effect": "NoSchedule"}
FAULTY = {"key": "muster.dev/faulty", "value": "true", "effect": "NoSchedule"}


def node(*taints: dict[str, str]) -> Node:
    labels = {"muster.dev/role": "spare"}
    return msgspec.convert({"metadata": {"name": "n1", "labels": labels}, "spec": {"taints": list(taints)}}, Node)


@dataclass
class Cluster:
    """The node as the tainter leaves it."""

    node: Node

    async def get(self, path: str, **_: object) -> Node:
        if path == "/api/v1/nodes/n1":
            return self.node
        raise NotFound(404, "NotFound", "none", path)

    async def list_pages(self, *_: object, **__: object) -> Any:
        yield SimpleNamespace(items=[])


async def test_a_spare_without_a_fault_is_no_target_while_a_tainter_leads() -> None:
    cluster: Any = Cluster(node(SPARE))
    (target,) = await find_targets(cluster, ["n1"], POLICY, keep_spares=True)
    assert not target.heavy


async def test_a_node_that_becomes_a_spare_as_it_loses_its_taint_is_released() -> None:
    target = make_target(node(FAULTY), 0, POLICY, keep_spares=True)
    assert target is not None

    async def sleep(_: float) -> None:
        pass

    cluster: Any = Cluster(node(SPARE))
    (released,) = await NodeRelease(cluster, "ann", POLICY, sleep=sleep).by_tainter([target])
    assert (released.done, released.why) == (True, "")


def test_without_a_tainter_a_spare_is_freed_too() -> None:
    target = make_target(node(SPARE), 0, POLICY)
    assert target is not None
    assert target.taints == ("muster.dev/spare=true:NoSchedule",)
    assert decide_hands_off(node(SPARE), POLICY, 0.0).taints == ()
