"""Removes the numbers of IPUs (the operator's setting ipu_visibility) from all nodes."""

import asyncio
import sys
from collections.abc import Iterator

from muster_kube.api.client import KubeClient
from muster_kube.api.errors import ApiError, NotFound
from muster_kube.process.command_line import EXIT_UNKNOWN
from muster_operator.observe.node_capacity import FleetNode
from muster_operator.visibility.advertisement import NodePatch, plan_removal

AT_ONCE = 24  # writes; more would only queue in the API server
SILENCE_S = 30.0  # without a byte of the list, which may be of a large fleet
MANAGER = "muster-cli"


async def release_ipus(client: KubeClient) -> int:
    """The exit code."""
    patches: list[NodePatch] = []
    async for page in client.list_pages("/api/v1/nodes", FleetNode, timeout_s=SILENCE_S):
        for node in page.items:
            found = plan_removal(node, "labels"), plan_removal(node, "resources")
            patches += [patch for patch in found if patch is not None]
    left = iter(patches)
    async with asyncio.TaskGroup() as group:
        workers = [group.create_task(_remove(client, left)) for _ in range(min(AT_ONCE, len(patches)))]
    errors = [error for worker in workers for error in worker.result()]
    for error in errors:
        print(f"muster: release: {error}", file=sys.stderr)
    paths = {patch.path.removesuffix("/status") for patch in patches}
    print(f"removed the numbers of IPUs from {len(paths)} nodes" + (f"; {len(errors)} writes failed" if errors else ""))
    return EXIT_UNKNOWN if errors else 0


async def _remove(client: KubeClient, left: Iterator[NodePatch]) -> list[ApiError]:
    errors: list[ApiError] = []
    for patch in left:
        try:
            await client.patch(patch.path, patch.body, params={"fieldManager": MANAGER})
        except NotFound:
            continue
        except ApiError as error:
            errors.append(error)
    return errors
