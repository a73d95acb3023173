"""Reads the policy from the ConfigMap that the tainter reads, as it is now."""

from muster_cli.cluster.tainter import NamespaceUnknown, find_namespace
from muster_kube.api.client import KubeClient
from muster_kube.api.config import ClusterConfig
from muster_kube.api.errors import ApiError, NotFound
from muster_tainter.pause import PauseMap, config_maps
from muster_tainter.policy.file import PolicyError, load_policy, parse_policy
from muster_tainter.policy.rules import Policy

POLICY_MAP, POLICY_KEY = "muster-policy", "policy.yaml"  # the ConfigMap of the tainter, in its namespace


async def read_policy_map(
    client: KubeClient, config: ClusterConfig, namespace: str | None
) -> tuple[Policy | None, str]:
    """The policy of the ConfigMap; without one, None and what is missing. namespace: of the tainter; None: that of its
    Lease. Raises NamespaceUnknown, PolicyError, and ApiError other than NotFound."""
    namespace = await find_namespace(client, config, namespace)
    try:
        found = await client.get(f"{config_maps(namespace)}/{POLICY_MAP}", type=PauseMap)
    except NotFound:
        return None, f"there is no ConfigMap {namespace}/{POLICY_MAP}"
    if text := found.data.get(POLICY_KEY, ""):
        return parse_policy(text, f"ConfigMap {POLICY_MAP}: {POLICY_KEY}"), ""
    return None, f"ConfigMap {namespace}/{POLICY_MAP} has no {POLICY_KEY}"


async def read_active_policy(client: KubeClient, config: ClusterConfig, namespace: str | None) -> tuple[Policy, str]:
    """The policy, and why it is the built-in one instead; empty if it is not.

    namespace: of the tainter; None: that of its Lease.
    """
    try:
        policy, why = await read_policy_map(client, config, namespace)
        if policy is not None:
            return policy, ""
    except PolicyError as error:
        why = str(error).splitlines()[0]
    except (NamespaceUnknown, ApiError) as error:
        why = str(error)
    return load_policy(None), why
