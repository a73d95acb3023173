"""Removes the numbers of IPUs (the operator's setting ipu_visibility) from all nodes."""

import asyncio
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from muster_cli.exit_codes import EXIT_WARN
from muster_cli.report.quantities import plural
from muster_kube.api.client import KubeClient
from muster_kube.api.errors import ApiError, NotFound
from muster_kube.process.command_line import EXIT_UNKNOWN
from muster_operator.observe.node_capacity import FleetNode
from muster_operator.visibility.advertisement import NodePatch, plan_removal

AT_ONCE = 24  # nodes; more would only queue in the API server
SILENCE_S = 30.0  # without a byte of the list, which may be of a large fleet
MANAGER = "muster-cli"


@dataclass
class NumberedNode:
    """A node with numbers of IPUs. patches: remove them. why: they are still there, if so."""

    name: str
    patches: Sequence[NodePatch]
    why: str = ""


async def release_ipus(client: KubeClient, *, confirm: Callable[[str], bool], as_document: bool = False) -> int:
    """The exit code. confirm: answers a question; it is not called if there is nothing to remove."""
    nodes: list[NumberedNode] = []
    async for page in client.list_pages("/api/v1/nodes", FleetNode, timeout_s=SILENCE_S):
        for node in page.items:
            patches = [patch for form in ("labels", "resources") if (patch := plan_removal(node, form)) is not None]
            if patches:
                nodes.append(NumberedNode(node.metadata.name, patches))
    if nodes and not confirm(
        "An operator that advertises IPUs writes the numbers again.\n"
        f"Remove the numbers of IPUs from {plural(len(nodes), 'node')}? [y/N] "
    ):
        print("nothing was released", file=sys.stderr)
        return EXIT_WARN
    left = iter(nodes)
    async with asyncio.TaskGroup() as group:
        for _ in range(min(AT_ONCE, len(nodes))):
            group.create_task(_remove(client, left))
    _show(nodes, as_document=as_document)
    return EXIT_UNKNOWN if any(node.why for node in nodes) else 0


async def _remove(client: KubeClient, left: Iterator[NumberedNode]) -> None:
    for node in left:
        for patch in node.patches:
            try:
                await client.patch(patch.path, patch.body, params={"fieldManager": MANAGER})
            except NotFound:
                continue
            except ApiError as error:
                node.why = str(error)


def _show(nodes: Sequence[NumberedNode], *, as_document: bool) -> None:
    failed = [node for node in nodes if node.why]
    released = len(nodes) - len(failed)
    if as_document:
        each = [
            {"node": node.name, "released": not node.why, **({"why": node.why} if node.why else {})} for node in nodes
        ]
        print(json.dumps({"released": released, "failed": len(failed), "nodes": each}, indent=2))
        return
    for node in failed:
        print(f"muster: release: {node.name}: {node.why}", file=sys.stderr)
    more = f"; {len(failed)} not released" if failed else ""
    print(f"removed the numbers of IPUs from {plural(released, 'node')}{more}")
