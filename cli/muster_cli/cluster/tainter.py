"""Finds the namespace of a cluster's tainter by its Lease, and whether a tainter leads."""

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
_MARGIN_S = 2.0  # added to the duration of the Lease, for a slow API server


class NamespaceUnknown(Exception):
    """The namespace of the tainter cannot be determined. The text says what was found and which flag to add."""


class NoTainterYet(NamespaceUnknown):
    """There is no Lease of a tainter in the whole cluster."""


class Leases(msgspec.Struct, frozen=True):
    items: tuple[Lease, ...] = ()


def add_namespace(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--namespace", metavar="NAME", help="namespace of the tainter; default: that of its Lease muster-tainter"
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
            f"several namespaces have a tainter ({', '.join(found)}): choose one with --namespace NAME"
        )
    raise NoTainterYet(
        f"no tainter has run in this cluster yet (there is no Lease {LEASE}): add --namespace NAME, the namespace "
        "where it will run"
    )


async def _with_leases(client: KubeClient, config: ClusterConfig) -> list[str]:
    try:
        found = await client.get(f"{_LEASES}/leases", type=Leases, params={"fieldSelector": f"metadata.name={LEASE}"})
    except Forbidden:  # some users may only read their own namespace
        try:
            await client.get(_path(config.namespace), type=Lease)
        except (Forbidden, NotFound):
            raise NamespaceUnknown(
                f"cannot find the tainter: you may not list Leases in all namespaces, and cannot read a Lease {LEASE} "
                f"in namespace {config.namespace}: add --namespace NAME, the namespace of the tainter"
            ) from None
        return [config.namespace]
    return sorted(lease.metadata.namespace for lease in found.items)


async def find_leader(
    client: KubeClient, namespace: str, *, sleep: Callable[[float], Awaitable[object]] = asyncio.sleep
) -> str:
    """The identity of the leader, or "" if no tainter leads.

    The clocks of other machines are not trusted: the holder leads if it renews the Lease while this function watches.
    A live leader is found within two seconds, a dead one is ruled out after the duration of the Lease.
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
