"""Where peers come from if none are configured: a component that knows the fleet."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Protocol

from muster_checks.base.declaration import NodeView


class Neighbours(Protocol):
    """Knows the names and addresses of other nodes, though perhaps not all of them, or not their latest addresses."""

    async def known(self) -> Mapping[str, str]:
        """Raises CannotTell."""
        ...  # pragma: no cover - the interface

    async def confirmed(self, silent: Collection[str]) -> Mapping[str, str]:
        """The same after looking up ``silent`` again; nodes that no longer exist or are known to be down are left out.
        Never raises."""
        ...  # pragma: no cover - the interface


@dataclass(frozen=True)
class NodeAmongOthers(NodeView):
    """A node in a fleet."""

    neighbours: Neighbours | None = None
