"""`muster status`: the fleet, or one node in full, as the cluster knows it. Asks no agent and runs nothing."""

import argparse
import json
import sys
import time
from typing import Any, TypeVar

import msgspec

from muster_checks.base.vocabulary import Verdict, shorten
from muster_cli.cluster.client import add_kubeconfig, node_name, run_with_client
from muster_cli.cluster.node_snapshot import NodeState, exit_code, read_node_state
from muster_cli.report.columns import print_table
from muster_cli.report.fleet_rows import (
    HEAD,
    NodeRow,
    as_json,
    node_row,
    node_rows,
    select_rows,
    summary,
    worst_verdict,
)
from muster_kube.api.client import KubeClient
from muster_kube.api.config import ClusterConfig
from muster_kube.api.errors import NotFound
from muster_kube.api.objects import Metadata, Node, Object
from muster_kube.nodehealth import PATH, NodeHealth, NodeHealthStatus
from muster_kube.process.command_line import EXIT_UNKNOWN

SILENCE_S = 30.0

T = TypeVar("T", bound=Object)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--host", type=node_name, metavar="NODE", help="one node in full; default: all, a row each")
    parser.add_argument("--all", action="store_true", help="a row for each sound node, however many")
    parser.add_argument("--json", action="store_true", help="one JSON document")
    add_kubeconfig(parser)


def main(arguments: argparse.Namespace) -> int:
    async def work(client: KubeClient, _config: ClusterConfig) -> int:
        if arguments.host is not None:
            return _show_node(await read_node_state(client, arguments.host), as_document=arguments.json)
        nodes, _ = await _list(client, "/api/v1/nodes", Node)
        try:
            healths, broken = await _list(client, PATH, NodeHealth)
        except NotFound:
            print("muster: this cluster has no NodeHealths: Muster is not installed", file=sys.stderr)
            return EXIT_UNKNOWN
        now = time.time()
        known = {name: _unreadable_health(name, why) for name, why in broken.items()}
        rows = node_rows(nodes, known | {health.metadata.name: health for health in healths}, now)
        return _show_fleet(rows, now, as_document=arguments.json, every=arguments.all)

    return run_with_client(arguments, work)


def _show_fleet(rows: list[NodeRow], now: float, *, as_document: bool, every: bool) -> int:
    if as_document:
        print(json.dumps(as_json(rows), indent=2))
    else:
        visible, said = select_rows(rows, every=every)
        if visible:
            print_table(HEAD, [row.cells(now) for row in visible])
        if said:
            print(said)
        print(summary(rows))
    return exit_code(worst_verdict(rows).value)


def _show_node(state: NodeState, *, as_document: bool) -> int:
    from muster_cli.report.node import format_node

    now = time.time()
    row = node_row(state.node.metadata.name, state.node, state.health, now)
    if as_document:
        print(json.dumps(_document(state, row), indent=2))
    else:
        print("\n".join(format_node(state, row, now)))
    return exit_code(row.verdict.value if row.verdict else "")


def _document(state: NodeState, row: NodeRow) -> dict[str, Any]:
    health = state.health
    document: dict[str, Any] = msgspec.to_builtins(row)
    return document | {
        "spec": msgspec.to_builtins(health.spec) if health is not None else {},
        "status": msgspec.to_builtins(health.status) if health is not None else {},
        "faults": {"open": msgspec.to_builtins(state.memory.open), "closed": msgspec.to_builtins(state.memory.closed)},
    }


def _unreadable_health(name: str, why: str) -> NodeHealth:
    """Stands for a NodeHealth that cannot be read."""
    status = NodeHealthStatus(verdict=Verdict.UNKNOWN.value, message=f"its NodeHealth makes no sense: {shorten(why)}")
    return NodeHealth(metadata=Metadata(name=name), status=status)


async def _list(client: KubeClient, path: str, kind: type[T]) -> tuple[list[T], dict[str, str]]:
    """All of them; and by name, why some cannot be read, which is told."""
    items: list[T] = []
    broken: dict[str, str] = {}
    async for page in client.list_pages(path, kind, timeout_s=SILENCE_S):
        items += page.items
        for each in page.undecodable:
            print(f"muster: {path}/{shorten(each.key or '(no name)')}: {shorten(each.error)}", file=sys.stderr)
            if each.key:
                broken[each.key] = each.error
    return items, broken
