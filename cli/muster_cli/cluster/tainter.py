"""Where a cluster's tainter is: the namespace of its Lease, which nobody need know by heart; and whether it lives."""

import argparse
import asyncio
from collections.abc import Awaitable, Callable

import msgspec

from muster_kube.api.client import KubeClient
from muster_kube.api.config import ClusterConfig
from muster_kube.api.errors import Forbidden, NotFound
from muster_kube.controller.lease import Lease

LEASE = "muster-tainter"
_LEASES = "/apis/coordination.k8s.io/v1"
_LOOK_EVERY_S = 0.5
_MARGIN_S = 2.0  # beyond the lease's own length, for a slow server


class NamespaceUnknown(Exception):
    """Nobody can tell which namespace is meant: what was found, what to give."""


class Leases(msgspec.Struct, frozen=True):
    items: tuple[Lease, ...] = ()


def add_namespace(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--namespace", metavar="NAME", help="of the tainter; default: the one that holds its Lease (muster-tainter)"
    )


async def find_namespace(client: KubeClient, config: ClusterConfig, given: str | None) -> str:
    """Raises NamespaceUnknown."""
    if given is not None:
        return given
    found = await _with_leases(client, config)
    if len(found) == 1:
        return found[0]
    if found:
        raise NamespaceUnknown(
            f"there are tainters in several namespaces ({', '.join(found)}): say which by --namespace NAME"
        )
    raise NamespaceUnknown(
        f"no tainter has ever led here (no Lease {LEASE} was found): say by --namespace NAME where it will be"
    )


async def _with_leases(client: KubeClient, config: ClusterConfig) -> list[str]:
    try:
        found = await client.get(f"{_LEASES}/leases", type=Leases, params={"fieldSelector": f"metadata.name={LEASE}"})
    except Forbidden:  # some may look into their own namespace only
        try:
            await client.get(_path(config.namespace), type=Lease)
        except (Forbidden, NotFound):
            raise NamespaceUnknown(
                f"you may not list Leases, and none of {LEASE} is seen in namespace {config.namespace}: say by "
                "--namespace NAME where the tainter is"
            ) from None
        return [config.namespace]
    return sorted(lease.metadata.namespace for lease in found.items)


async def find_leader(
    client: KubeClient, namespace: str, *, sleep: Callable[[float], Awaitable[object]] = asyncio.sleep
) -> str:
    """Who leads and is alive; empty: nobody.

    A holder is alive that renews its Lease while we look, as clocks of other machines say nothing: a live one is
    known within two seconds, a dead one after the Lease's length.
    """
    first = await _lease(client, namespace)
    if first is None or not first.spec.holder_identity:
        return ""
    left_s = (first.spec.lease_duration_seconds or 10) + _MARGIN_S
    while left_s > 0:
        await sleep(_LOOK_EVERY_S)
        left_s -= _LOOK_EVERY_S
        lease = await _lease(client, namespace)
        if lease is None or not lease.spec.holder_identity:
            return ""
        if lease.spec != first.spec:
            return lease.spec.holder_identity
    return ""


async def _lease(client: KubeClient, namespace: str) -> Lease | None:
    try:
        return await client.get(_path(namespace), type=Lease)
    except NotFound:
        return None


def _path(namespace: str) -> str:
    return f"{_LEASES}/namespaces/{namespace}/leases/{LEASE}"
