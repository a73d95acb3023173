"""`muster clear NODE…`: closes faults because a person says that they are repaired. RBAC on nodehealths guards it."""

import argparse
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

import msgspec

from muster_checks.base.unknown_names import explain_unknown
from muster_checks.registry import SHIPPED
from muster_cli.cluster.client import add_kubeconfig, run_with_client
from muster_cli.cluster.node_arguments import add_nodes, named_nodes
from muster_cli.cluster.node_snapshot import LIST_NODES, NodeState, NotInCluster, UnknownNode, read_node_state
from muster_kube.api.client import KubeClient
from muster_kube.api.config import ClusterConfig
from muster_kube.api.errors import Conflict
from muster_kube.api.times import rfc3339
from muster_kube.nodehealth import CLEAR_LIMIT, PATH, ClearEntry, NodeHealth
from muster_kube.process.command_line import EXIT_UNKNOWN, EXIT_USAGE
from muster_tainter.faults.manual_clear import clear_entries, merge_clears
from muster_tainter.policy.recovery import SOURCE_CHECKS

TRIES = 8  # another client, such as the agent once a second, may write the NodeHealth between our read and our write


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "muster clear [options] NODE… [CHECK]"
    add_nodes(parser, "close the faults of these nodes; if the last word is the name of a check, it means --check")
    parser.add_argument("--check", metavar="CHECK", help="only the faults of this check")
    parser.add_argument("--component", help="only the faults of this component, such as gpu/0000:3b:00.0")
    add_kubeconfig(parser)


def main(arguments: argparse.Namespace) -> int:
    names, check = split_check(named_nodes(arguments), arguments.check)
    if not names:
        print("muster: clear: expected NODE… [CHECK]", file=sys.stderr)
        return EXIT_USAGE

    async def work(client: KubeClient, config: ClusterConfig) -> int:
        states, chosen = await _read_states(client, names, check)
        codes = [await _clear(client, config, state, chosen, arguments.component) for state in states]
        return max(codes)

    return run_with_client(arguments, work)


def split_check(words: Sequence[str], check: str | None) -> tuple[list[str], str | None]:
    """(nodes, check) of ``NODE… [CHECK]``. A node that is named like a check can be given with --check."""
    if check is None and len(words) > 1 and (words[-1] in SHIPPED or words[-1] in SOURCE_CHECKS):
        return list(words[:-1]), words[-1]
    return list(words), check


async def _read_states(
    client: KubeClient, names: Sequence[str], check: str | None
) -> tuple[list[NodeState], str | None]:
    """The last name may be that of a plug-in check, which only the faults of the other nodes show. Raises
    NotInCluster before anything is written."""
    states: list[NodeState] = []
    for name in names:
        try:
            states.append(await read_node_state(client, name))
        except UnknownNode as error:
            if check is not None or not states or name != names[-1]:
                raise
            reported = {each for state in states for each in _checks_of(state)}
            if name in reported:
                return states, name
            known = [*error.known, *reported, *SHIPPED]
            raise NotInCluster(explain_unknown("node or check", name, known, LIST_NODES)) from None
    return states, check


def _checks_of(state: NodeState) -> set[str]:
    reported = {each.name for each in state.health.status.checks} if state.health is not None else set()
    return reported | {fault.check for fault in state.memory.open}


async def _clear(
    client: KubeClient, config: ClusterConfig, state: NodeState, check: str | None, component: str | None
) -> int:
    """Returns the exit code."""
    name = state.node.metadata.name
    for attempt in range(TRIES):
        if attempt:
            state = await read_node_state(client, name)
        if state.health is None:
            print(f"muster: node {name} has no NodeHealth: no tainter watches this node", file=sys.stderr)
            return EXIT_UNKNOWN
        at = await _server_time(client, name)
        new = clear_entries(state.health, state.memory, check, component, config.user, at)
        new, late = new[:CLEAR_LIMIT], len(new[CLEAR_LIMIT:])
        if not new:
            _print_nothing_to_clear(state, config, check, component)
            return 0
        try:
            await write_clear(client, state.health, new)
        except Conflict:
            continue
        for entry in new:
            print(f"{name}: {entry.check} {entry.component} cleared up to occurrence {entry.occurrence}")
        if late:
            print(f"muster: {name}: {late} more checks have faults to clear: run the command again", file=sys.stderr)
        return EXIT_UNKNOWN if late else 0
    print(f"muster: {name}: not cleared: {TRIES} writes conflicted with other clients: try again", file=sys.stderr)
    return EXIT_UNKNOWN


async def _server_time(client: KubeClient, node: str) -> str:
    """The time at the API server, RFC 3339: agents compare it with the times of their findings, and the clock of this
    machine may be wrong. It is at most the time of the write that follows."""
    try:
        at = parsedate_to_datetime(await client.date(f"{PATH}/{node}"))
    except (ValueError, TypeError):  # without the header
        at = datetime.now(UTC)
    return rfc3339(at.timestamp())


def _print_nothing_to_clear(state: NodeState, config: ClusterConfig, check: str | None, component: str | None) -> None:
    assert state.health is not None  # noqa: S101 - the caller has one
    chosen = " ".join(part for part in (check, component) if part)
    others = clear_entries(state.health, state.memory, None, None, config.user, "") if chosen else ()
    there = ", ".join(f"{entry.check} {entry.component}" for entry in others)
    print(
        f"{state.node.metadata.name}: nothing to clear: no open fault and no finding{f' of {chosen}' if chosen else ''}"
        f"{f'; open: {there}' if there else ''}"
    )


async def write_clear(client: KubeClient, health: NodeHealth, new: tuple[ClearEntry, ...]) -> None:
    """Add ``new`` to spec.clear of exactly the object that was read. Raises Conflict if it has changed since."""
    await client.patch(
        f"{PATH}/{health.metadata.name}",
        {
            "metadata": {"resourceVersion": health.metadata.resource_version},
            "spec": {"clear": msgspec.to_builtins(merge_clears(health.spec.clear, new))},
        },
    )
