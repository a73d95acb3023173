"""`muster clear NODE [CHECK]`: a person says that a node's faults are over. Guarded by RBAC on nodehealths."""

import argparse
import sys
from collections.abc import Iterable
from datetime import UTC, datetime

import msgspec

from muster_cli.cluster import EXIT_UNKNOWN, add_kubeconfig, call, node_name
from muster_cli.report import NodeState, fetch
from muster_kube.client import KubeClient
from muster_kube.config import ClusterConfig
from muster_kube.errors import Conflict
from muster_kube.nodehealth import CLEAR_LIMIT, PATH, Clear, NodeHealth

TRIES = 5  # another writer of the same NodeHealth between reading and writing


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("node", metavar="NODE", type=node_name)
    parser.add_argument("check", metavar="CHECK", nargs="?", help="only the faults of this check")
    parser.add_argument("--component", help="only the faults of this component, e.g. gpu/0000:3b:00.0")
    add_kubeconfig(parser)


def clears(state: NodeState, check: str | None, component: str | None, by: str, at: str) -> tuple[Clear, ...]:
    """What closes every open fault and finding of the node that the person named: one entry a component of a check,
    or one for all components of a check where there is no room for so many."""
    highest: dict[tuple[str, str], int] = {}
    for found_check, found_component, occurrence in (*_findings(state), *_faults(state)):
        if check not in (None, found_check) or component not in (None, found_component):
            continue
        key = (found_check, found_component)
        highest[key] = max(highest.get(key, 0), occurrence)
    if component is None and len(highest) > CLEAR_LIMIT:
        checks = {found_check for found_check, _ in highest}
        highest = {(each, "*"): max(n for key, n in highest.items() if key[0] == each) for each in checks}
    return tuple(
        Clear(check=key[0], component=key[1], occurrence=occurrence, by=by, at=at)
        for key, occurrence in sorted(highest.items())
    )


def _findings(state: NodeState) -> Iterable[tuple[str, str, int]]:
    if state.health is None:
        return
    for check in state.health.status.checks:
        for finding in check.findings:
            yield check.name, finding.component, finding.occurrence


def _faults(state: NodeState) -> Iterable[tuple[str, str, int]]:
    for fault in state.memory.open:
        yield fault.check, fault.component, fault.occurrence


def merged(known: tuple[Clear, ...], new: tuple[Clear, ...]) -> tuple[Clear, ...]:
    """``known`` with ``new`` in place of those for the same component; the oldest go where there are too many."""
    replaced = {(entry.check, entry.component) for entry in new}
    kept = [entry for entry in known if (entry.check, entry.component) not in replaced]
    return (*kept, *new)[-CLEAR_LIMIT:]


def main(arguments: argparse.Namespace) -> int:
    async def work(client: KubeClient, config: ClusterConfig) -> int:
        for _ in range(TRIES):
            state = await fetch(client, arguments.node)
            if state.health is None:
                print(f"muster: node {arguments.node} has no NodeHealth: no tainter watches it", file=sys.stderr)
                return EXIT_UNKNOWN
            at = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
            new = clears(state, arguments.check, arguments.component, config.user, at)
            new, late = new[:CLEAR_LIMIT], len(new[CLEAR_LIMIT:])
            if not new:
                print(f"{arguments.node}: no open fault and no finding to clear")
                return 0
            try:
                await put(client, state.health, new)
            except Conflict:
                continue
            for entry in new:
                print(f"{arguments.node}: {entry.check} {entry.component} cleared up to occurrence {entry.occurrence}")
            if late:
                print(f"muster: {late} more checks have something to clear: do it again", file=sys.stderr)
            return EXIT_UNKNOWN if late else 0
        print(f"muster: {arguments.node} was written by others {TRIES} times meanwhile: try again", file=sys.stderr)
        return EXIT_UNKNOWN

    return call(arguments, work)


async def put(client: KubeClient, health: NodeHealth, new: tuple[Clear, ...]) -> None:
    """Write ``new`` into spec.clear, on exactly the object that was read. Raises Conflict where it has moved on."""
    await client.patch(
        f"{PATH}/{health.metadata.name}",
        {
            "metadata": {"resourceVersion": health.metadata.resource_version},
            "spec": {"clear": msgspec.to_builtins(merged(health.spec.clear, new))},
        },
    )
