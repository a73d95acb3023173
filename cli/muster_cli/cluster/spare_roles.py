"""The roles of nodes among the spares of their pools, read from the cluster."""

from collections.abc import Iterable, Mapping

import msgspec

from muster_cli.cluster.active_policy import read_active_policy
from muster_kube.api.client import KubeClient
from muster_kube.api.config import ClusterConfig
from muster_kube.api.errors import ApiError
from muster_kube.api.objects import Node
from muster_kube.nodehealth import NodeHealth
from muster_tainter.policy.rules import Policy
from muster_tainter.policy.spares import SpareRole
from muster_tainter.spares.facts import NodeRole, group_of, node_role, role_of, spare_groups
from muster_tainter.spares.plan import GroupState, TaintSlot

_LIST_S = 10.0


async def read_roles(
    client: KubeClient, config: ClusterConfig, nodes: Iterable[Node], healths: Mapping[str, NodeHealth], now: float
) -> tuple[dict[str, NodeRole], list[GroupState]]:
    """(by node; the groups of pools that keep spares). ``nodes``: all of the cluster."""
    policy, missing = await read_active_policy(client, config, None)
    there = list(nodes)
    groups = spare_groups(there, healths, policy, now)
    common = {(group.pool, group.domain): group.plan.common for group in groups}
    roles = {}
    for node in there:
        if role_of(node) is not SpareRole.NONE:
            place, name = group_of(node, policy), node.metadata.name
            taints = common[place[0]] if place is not None else frozenset[TaintSlot]()
            found = node_role(node, healths.get(name), policy, now, taints)
            if found is not None:
                roles[name] = _known(found, missing)
    return roles, groups


async def read_common_taints(client: KubeClient, node: Node, policy: Policy, now: float) -> frozenset[TaintSlot]:
    """The taints of others that most nodes of the spare's group have; empty without the right to list Nodes. Lists
    them only if the node has such taints."""
    place = group_of(node, policy)
    if place is None or role_of(node) is not SpareRole.SPARE or len(node.spec.taints) < 2:
        return frozenset()
    nodes: list[Node] = []
    try:
        async for page in client.list_pages("/api/v1/nodes", Node, timeout_s=_LIST_S):
            nodes += page.items
    except ApiError:
        return frozenset()
    groups = spare_groups(nodes, {}, policy, now)
    return next((each.plan.common for each in groups if (each.pool, each.domain) == place[0]), frozenset())


async def read_node_role(
    client: KubeClient, config: ClusterConfig, node: Node, health: NodeHealth | None, now: float
) -> NodeRole | None:
    """Of one node; reads the policy only if it has a role."""
    if role_of(node) is SpareRole.NONE:
        return None
    policy, missing = await read_active_policy(client, config, None)
    role = node_role(node, health, policy, now, await read_common_taints(client, node, policy, now))
    return _known(role, missing) if role is not None else None


def _known(role: NodeRole, missing: str) -> NodeRole:
    """Without the policy nobody can say whether a spare is ready. missing: why it could not be read."""
    if not missing or role.role is not SpareRole.SPARE:
        return role
    return msgspec.structs.replace(role, ready=False, why=(f"not known: {missing}",))
