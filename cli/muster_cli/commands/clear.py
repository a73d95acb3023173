"""`muster clear NODE [CHECK]`: a person says that a node's faults are over. Guarded by RBAC on nodehealths."""

import argparse
import sys
from datetime import UTC, datetime

import msgspec

from muster_cli.cluster.client import add_kubeconfig, node_name, run_with_client
from muster_cli.cluster.node_snapshot import read_node_state
from muster_kube.api.client import KubeClient
from muster_kube.api.config import ClusterConfig
from muster_kube.api.errors import Conflict
from muster_kube.nodehealth import CLEAR_LIMIT, PATH, ClearEntry, NodeHealth
from muster_kube.process.command_line import EXIT_UNKNOWN
from muster_tainter.faults.manual_clear import clear_entries, merge_clears

TRIES = 5  # another writer of the same NodeHealth between reading and writing


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("node", metavar="NODE", type=node_name)
    parser.add_argument("check", metavar="CHECK", nargs="?", help="only the faults of this check")
    parser.add_argument("--component", help="only the faults of this component, e.g. gpu/0000:3b:00.0")
    add_kubeconfig(parser)


def main(arguments: argparse.Namespace) -> int:
    async def work(client: KubeClient, config: ClusterConfig) -> int:
        for _ in range(TRIES):
            state = await read_node_state(client, arguments.node)
            if state.health is None:
                print(f"muster: node {arguments.node} has no NodeHealth: no tainter watches it", file=sys.stderr)
                return EXIT_UNKNOWN
            at = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
            new = clear_entries(state.health, state.memory, arguments.check, arguments.component, config.user, at)
            new, late = new[:CLEAR_LIMIT], len(new[CLEAR_LIMIT:])
            if not new:
                of = " ".join(part for part in (arguments.check, arguments.component) if part)
                others = clear_entries(state.health, state.memory, None, None, config.user, at) if of else ()
                there = ", ".join(f"{entry.check} {entry.component}" for entry in others)
                print(
                    f"{arguments.node}: no open fault and no finding{f' of {of}' if of else ''} to clear"
                    f"{f'; there is {there}' if there else ''}"
                )
                return 0
            try:
                await write_clear(client, state.health, new)
            except Conflict:
                continue
            for entry in new:
                print(f"{arguments.node}: {entry.check} {entry.component} cleared up to occurrence {entry.occurrence}")
            if late:
                print(f"muster: {late} more checks have something to clear: do it again", file=sys.stderr)
            return EXIT_UNKNOWN if late else 0
        print(f"muster: {arguments.node} was written by others {TRIES} times meanwhile: try again", file=sys.stderr)
        return EXIT_UNKNOWN

    return run_with_client(arguments, work)


async def write_clear(client: KubeClient, health: NodeHealth, new: tuple[ClearEntry, ...]) -> None:
    """Write ``new`` into spec.clear, on exactly the object that was read. Raises Conflict where it has moved on."""
    await client.patch(
        f"{PATH}/{health.metadata.name}",
        {
            "metadata": {"resourceVersion": health.metadata.resource_version},
            "spec": {"clear": msgspec.to_builtins(merge_clears(health.spec.clear, new))},
        },
    )
