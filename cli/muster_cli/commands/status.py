"""`muster status`: shows the fleet, or single nodes in full, from what the cluster holds. Runs no check."""

import argparse
import sys
import time
from collections.abc import Coroutine, Iterator
from typing import Any, TypeVar

import msgspec

from muster_checks.base.vocabulary import Verdict, shorten, worst
from muster_cli.cluster.client import add_kubeconfig, run_with_client
from muster_cli.cluster.node_arguments import add_nodes, named_nodes
from muster_cli.cluster.node_devices import FleetDevices, read_node_devices
from muster_cli.cluster.node_snapshot import NodeState, NotInCluster, read_node_state
from muster_cli.cluster.spare_roles import read_node_role, read_roles
from muster_cli.exit_codes import exit_code
from muster_cli.interrupt import run_interruptibly
from muster_cli.report.columns import print_table
from muster_cli.report.fleet.answer import ALL_ROWS
from muster_cli.report.fleet.rows import (
    HEAD,
    NodeRow,
    as_json,
    node_row,
    node_rows,
    select_rows,
    summary,
    worst_verdict,
)
from muster_cli.report.fleet.spare_counts import SpareCount, spare_counts, spare_lines
from muster_cli.report.fleet.watch import FleetWatch
from muster_cli.report.output_format import TABLE, add_output, print_document
from muster_kube.api.client import KubeClient
from muster_kube.api.config import ClusterConfig
from muster_kube.api.errors import NotFound
from muster_kube.api.objects import Metadata, Node, Object
from muster_kube.nodehealth import PATH, NodeHealth, NodeHealthStatus
from muster_kube.process.command_line import EXIT_USAGE

LIST_S = 30.0  # without a byte of the answer

T = TypeVar("T", bound=Object)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_nodes(parser, "show these nodes in full; default: a table of all nodes")
    parser.add_argument("--all", action="store_true", help=ALL_ROWS)
    parser.add_argument("--watch", action="store_true", help="repeat every 2 s until Ctrl-C")
    add_output(parser)
    add_kubeconfig(parser)


def main(arguments: argparse.Namespace) -> int:
    names = named_nodes(arguments)
    if arguments.watch and arguments.output != TABLE:
        print(f"muster: --watch prints a table: it does not work with -o {arguments.output}", file=sys.stderr)
        return EXIT_USAGE

    async def show_once(client: KubeClient, config: ClusterConfig) -> int:
        if names:
            found = [await _read_node(client, config, name) for name in names]
            return _show_nodes(found, arguments.output)
        devices = FleetDevices()
        rows, spares = await read_fleet(client, config, devices)
        return _show_fleet(rows, spares, devices.missing, arguments.output, every=arguments.all)

    if not arguments.watch:
        return run_with_client(arguments, show_once)

    counts: list[SpareCount] = []
    devices = FleetDevices()

    def footer() -> Iterator[str]:
        yield from spare_lines(counts)
        if devices.missing:
            yield devices.missing

    watch = FleetWatch(every=arguments.all or bool(names), footer=footer)

    async def watch_rows(client: KubeClient, config: ClusterConfig) -> int:
        async def read() -> list[NodeRow]:
            if names:
                return [(await _read_node(client, config, name))[1] for name in names]
            rows, counts[:] = await read_fleet(client, config, devices)
            return rows

        return await watch.run(read)

    def run(work: Coroutine[Any, Any, int]) -> int:
        try:
            return run_interruptibly(work)
        except KeyboardInterrupt:
            return watch.exit_code()

    return run_with_client(arguments, watch_rows, run)


async def _read_node(client: KubeClient, config: ClusterConfig, name: str) -> tuple[NodeState, NodeRow]:
    state, now = await read_node_state(client, name), time.time()
    role = await read_node_role(client, config, state.node, state.health, now)
    devices, missing = await read_node_devices(client, name)
    if missing:
        print(f"muster: {name}: {shorten(missing)}", file=sys.stderr)
    return state, node_row(name, state.node, state.health, now, role, devices)


async def read_fleet(
    client: KubeClient, config: ClusterConfig, devices: FleetDevices
) -> tuple[list[NodeRow], list[SpareCount]]:
    """Raises NotInCluster, ApiError."""
    nodes, _ = await _list(client, "/api/v1/nodes", Node)
    try:
        healths, broken = await _list(client, PATH, NodeHealth)
    except NotFound:
        raise NotInCluster("this cluster has no NodeHealths: Muster is not installed (docs/install.md)") from None
    known = {name: _unreadable_health(name, why) for name, why in broken.items()}
    known |= {health.metadata.name: health for health in healths}
    roles, groups = await read_roles(client, config, nodes, known, time.time())
    await devices.read(client, {node.metadata.name for node in nodes})
    return node_rows(nodes, known, time.time(), roles, devices.by_node), spare_counts(groups)


def _show_fleet(rows: list[NodeRow], spares: list[SpareCount], missing: str, output: str, *, every: bool) -> int:
    """missing: why taints of drivers are not shown."""
    if output != TABLE:
        if missing:
            print(f"muster: {shorten(missing)}", file=sys.stderr)
        print_document(as_json(rows, spares), output)
    else:
        visible, hidden = select_rows(rows, every=every)
        if visible:
            now = time.time()
            print_table(HEAD, [row.cells(now) for row in visible])
        if hidden:
            print(hidden)
        for line in spare_lines(spares):
            print(shorten(line))
        if missing:
            print(shorten(missing))
        print(summary(rows))
    return exit_code(worst_verdict(rows).value)


def _show_nodes(nodes: list[tuple[NodeState, NodeRow]], output: str) -> int:
    from muster_cli.report.node import format_node

    now = time.time()
    verdict = worst([row.verdict or Verdict.UNKNOWN for _, row in nodes])
    if output != TABLE:
        documents = [_document(state, row) for state, row in nodes]
        print_document(documents[0] if len(nodes) == 1 else {"nodes": documents, "verdict": verdict.value}, output)
    else:
        print("\n\n".join("\n".join(format_node(state, row, now)) for state, row in nodes))
    return exit_code(verdict.value)


def _document(state: NodeState, row: NodeRow) -> dict[str, Any]:
    health = state.health
    document: dict[str, Any] = msgspec.to_builtins(row)
    return document | {
        "spec": msgspec.to_builtins(health.spec) if health is not None else {},
        "status": msgspec.to_builtins(health.status) if health is not None else {},
        "faults": {"open": msgspec.to_builtins(state.memory.open), "closed": msgspec.to_builtins(state.memory.closed)},
    }


def _unreadable_health(name: str, why: str) -> NodeHealth:
    """Replaces a NodeHealth that cannot be decoded."""
    status = NodeHealthStatus(verdict=Verdict.UNKNOWN.value, message=f"cannot decode its NodeHealth: {shorten(why)}")
    return NodeHealth(metadata=Metadata(name=name), status=status)


async def _list(client: KubeClient, path: str, kind: type[T]) -> tuple[list[T], dict[str, str]]:
    """(all objects; by name, why an object cannot be decoded). The latter are also reported on stderr."""
    items: list[T] = []
    broken: dict[str, str] = {}
    async for page in client.list_pages(path, kind, timeout_s=LIST_S):
        items += page.items
        for each in page.undecodable:
            print(f"muster: {path}/{shorten(each.key or '(no name)')}: {shorten(each.error)}", file=sys.stderr)
            if each.key:
                broken[each.key] = each.error
    return items, broken
