"""Shows the fleet while the sandbox runs: a live table on a terminal, else a line for each change."""

import asyncio
import sys
import time
from collections.abc import Callable

from muster_cli.sandbox.node_table import SandboxRow, describe_changes, render_table, sandbox_rows
from muster_kube.api.client import KubeClient
from muster_kube.api.objects import Node
from muster_kube.controller.reflector import Reflector
from muster_kube.nodehealth import PATH, NodeHealth

REDRAW_S = 0.2  # changes within this time are drawn together


class FleetView:
    """Watches Nodes and NodeHealths; sets ``changed`` after each change."""

    def __init__(self, client: KubeClient, first: str) -> None:
        self.first = first
        self.changed = asyncio.Event()
        self.nodes = Reflector(client, "/api/v1/nodes", Node, on_change=self._on_change)
        self.healths = Reflector(client, PATH, NodeHealth, on_change=self._on_change)

    def _on_change(self, *_: object) -> None:
        self.changed.set()

    def rows(self) -> list[SandboxRow]:
        return sandbox_rows(self.nodes.store, self.healths.store, self.first)


async def show_fleet(view: FleetView, caption: str, *, terminal: bool, say: Callable[[str], None]) -> None:
    """Draw until cancelled."""
    await view.nodes.wait_synced()
    await view.healths.wait_synced()
    if terminal:
        await _draw(view, caption)
    else:
        await _print(view, say)


async def _draw(view: FleetView, caption: str) -> None:
    from rich.console import Console
    from rich.live import Live

    with Live(console=Console(file=sys.stdout), auto_refresh=False, transient=False) as screen:
        while True:
            view.changed.clear()
            screen.update(render_table(view.rows(), caption), refresh=True)
            await view.changed.wait()
            await asyncio.sleep(REDRAW_S)


async def _print(view: FleetView, say: Callable[[str], None]) -> None:
    known: dict[str, SandboxRow] = {}
    while True:
        view.changed.clear()
        now = view.rows()
        for line in describe_changes(known, now):
            say(f"{time.strftime('%H:%M:%S')} {line}")
        known = {row.node: row for row in now}
        await view.changed.wait()
