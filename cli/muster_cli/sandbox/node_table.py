"""The rows of the sandbox's live table, one for each node, and the lines that describe changes."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec

from muster_cli.report.colours import VERDICT_STYLES
from muster_kube.api.objects import Node
from muster_kube.nodehealth import NodeHealth
from muster_tainter.faults.messages import withheld_reason

if TYPE_CHECKING:
    from rich.table import Table

NOT_OURS = ("node.kubernetes.io/",)  # taints of Kubernetes itself


class SandboxRow(msgspec.Struct, frozen=True):
    node: str
    verdict: str
    message: str
    taints: tuple[str, ...]
    withheld: str = ""
    """Why the tainter has not set a taint that the policy requires."""


def sandbox_rows(nodes: Mapping[str, Node], healths: Mapping[str, NodeHealth], first: str) -> list[SandboxRow]:
    """One row for each Node: ``first`` (this machine), then by name."""
    return [
        sandbox_row(nodes[name], healths.get(name)) for name in sorted(nodes, key=lambda name: (name != first, name))
    ]


def sandbox_row(node: Node, health: NodeHealth | None) -> SandboxRow:
    taints = tuple(
        f"{taint.key}={taint.value}:{taint.effect}" if taint.value else f"{taint.key}:{taint.effect}"
        for taint in node.spec.taints
        if not taint.key.startswith(NOT_OURS)
    )
    withheld = withheld_reason(node)
    if health is None or not health.status.verdict:
        return SandboxRow(node.metadata.name, "UNKNOWN", "no report from its agent yet", taints, withheld)
    findings = [finding for check in health.status.checks for finding in check.findings]
    message = findings[0].message if findings else health.status.message
    more = f" (+{len(findings) - 1} more)" if len(findings) > 1 else ""
    return SandboxRow(node.metadata.name, health.status.verdict, message + more, taints, withheld)


def describe_changes(before: Mapping[str, SandboxRow], now: list[SandboxRow]) -> list[str]:
    """One line for each new or changed row."""
    lines = []
    for current in now:
        known = before.get(current.node)
        if current == known:
            continue
        verdict = current.verdict if known is None else f"{known.verdict} -> {current.verdict}"
        if known is not None and known.verdict == current.verdict:
            verdict = current.verdict
        tainted = f"  tainted {', '.join(current.taints)}" if current.taints else ""
        kept = f"  not tainted: {current.withheld}" if current.withheld else ""
        freed = "  taint removed" if known is not None and known.taints and not current.taints else ""
        lines.append(f"{current.node:<16} {verdict:<16} {current.message}{tainted}{kept}{freed}".rstrip())
    return lines


def render_table(now: list[SandboxRow], caption: str) -> "Table":
    from rich.table import Table
    from rich.text import Text

    table = Table(caption=caption, caption_justify="left", expand=True)
    table.add_column("NODE", no_wrap=True)
    table.add_column("VERDICT", no_wrap=True)
    table.add_column("TAINT", overflow="fold")
    table.add_column("MESSAGE", overflow="fold", ratio=1)
    for current in now:
        table.add_row(
            current.node,
            Text(current.verdict, style=VERDICT_STYLES.get(current.verdict, "")),
            Text("\n".join(current.taints), style="red").append(_withheld(current), style="yellow"),
            Text(current.message),
        )
    return table


def _withheld(row: SandboxRow) -> str:
    """Below its taints."""
    if not row.withheld:
        return ""
    return ("\n" if row.taints else "") + f"withheld, {row.withheld}"
