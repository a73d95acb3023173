"""The explanation of a node, as values and as text. Its first line gives the node's state and the cause; the rest is
detail."""

from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from muster_tainter.devices.device_states import DeviceState
from muster_tainter.spares.facts import NodeRole

_LABEL_WIDTH = 8


class ChainLink(NamedTuple):
    """One line of a chain. label: ``saw``, ``measured``, ``rule``, ``since``, ``proof``, ``held``, ``ends by`` …"""

    label: str
    text: str


class FaultChain(msgspec.Struct, frozen=True):
    """One fault. state: tainted, withheld, waiting, held, quarantined, open, or closed."""

    fault: str
    state: str
    links: tuple[ChainLink, ...] = ()


class NodeExplanation(msgspec.Struct, frozen=True, rename="camel"):
    """state: TAINTED, WITHHELD, FAULTY (open fault without action), HELD, SPARE, FREE, UNMANAGED.

    role: of a spare or a replacement, whatever its state
    why: one line; paused: who paused Muster and why; chains: open faults, worst state first; closed: newest first;
    findings: reported findings without a fault; do: commands for the operator
    devices: of the node's ResourceSlices; device_lines: the same in words, without those that are in use
    """

    node: str
    state: str
    why: str
    role: NodeRole | None = None
    paused: str = ""
    taints: tuple[str, ...] = ()
    others: tuple[str, ...] = ()
    chains: tuple[FaultChain, ...] = ()
    closed: tuple[FaultChain, ...] = ()
    findings: tuple[FaultChain, ...] = ()
    notes: tuple[str, ...] = ()
    do: tuple[str, ...] = ()
    devices: tuple[DeviceState, ...] = ()
    device_lines: tuple[str, ...] = ()


def format_explanation(explanation: NodeExplanation) -> Iterator[str]:
    """The explanation as text: open faults, then findings without a fault, then closed faults."""
    if explanation.paused:
        yield f"PAUSED{explanation.paused.removeprefix('paused')}; no new taints, recovery continues"
    yield f"{explanation.node} {explanation.state}  {explanation.why}"
    if explanation.role is not None:
        since = f", since {explanation.role.since}" if explanation.role.since else ""
        yield f"  role: {explanation.role}{since}"
    if explanation.taints:
        yield f"  taints: {', '.join(explanation.taints)}"
    if explanation.others:
        yield f"  set by others, not changed by Muster: {', '.join(explanation.others)}"
    for chain in explanation.chains:
        yield ""
        yield f"{chain.state.upper()}  {chain.fault}"
        yield from _links(chain)
    sections = (("reported, but not a fault:", explanation.findings), ("recently closed:", explanation.closed))
    for title, chains in sections:
        if chains:
            yield ""
            yield title
        for chain in chains:
            yield f"  {chain.fault}{'' if chain.state == 'closed' else f'  {chain.state}'}"
            yield from (f"  {line}" for line in _links(chain))
    if explanation.device_lines:
        yield ""
        yield from explanation.device_lines
    if explanation.notes or explanation.do:
        yield ""
    yield from explanation.notes
    yield from (f"  {line}" for line in explanation.do)


def _links(chain: FaultChain) -> Iterator[str]:
    return (f"  {link.label:<{_LABEL_WIDTH}} {link.text}" for link in chain.links)
